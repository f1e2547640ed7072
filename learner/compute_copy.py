"""What gradients are computed with: the parameters on the devices, matrices in the compute dtype.

Invariant: a copy is made once an update, a layer at a time from where the parameters live, and lies on the mesh as
they do; where it would be what it is a copy of, it is that, and takes no memory. Norms' scales and what recurrence and
convolution read stay float32: they are small, and read in float32.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from learner.mesh import is_matrix, is_stacked, param_shardings


class ComputeCopy:
    """Makes the compute copies of a parameter tree."""

    def __init__(self, shapes, mesh: Mesh, compute_dtype: str, memory: str):
        """``shapes``: the parameters, as arrays or shapes, which live in ``memory``."""
        self.shardings = param_shardings(shapes, mesh)
        self.shapes = jax.tree_util.tree_map_with_path(partial(_abstract, compute_dtype), shapes, self.shardings)
        self.same = memory == "device" and all(
            x.dtype == y.dtype for x, y in zip(jax.tree.leaves(shapes), jax.tree.leaves(self.shapes), strict=True)
        )
        """Whether the parameters are computed with themselves."""
        self.make = jax.jit(self._make, static_argnames="rounded", out_shardings=self.shardings)
        """The compiled function behind a call."""

    def __call__(self, params, rounded: str | None = None):
        """``params`` as they are computed with; ``rounded``: to the values of this dtype first."""
        if self.same and all(rounded in (None, x.dtype) for x in jax.tree.leaves(self.shapes)):
            return params
        return self.make(params, rounded=rounded)

    def _make(self, params, rounded: str | None):
        def layer(dtype, x):
            x = jax.device_put(x, jax.memory.Space.Device)
            return x.astype(rounded or x.dtype).astype(dtype)

        def leaf(path, x, like):
            convert = partial(layer, like.dtype)
            return jax.lax.map(convert, x) if is_stacked(path) else convert(x)

        return jax.tree_util.tree_map_with_path(leaf, params, self.shapes)


def _abstract(compute_dtype: str, path, leaf, sharding) -> jax.ShapeDtypeStruct:
    dtype = compute_dtype if is_matrix(path, leaf) else jnp.float32
    return jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(dtype), sharding=sharding)
