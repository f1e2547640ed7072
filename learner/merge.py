"""The weights that adapters make of their base, as actors will hold them.

Invariant: what is probed here is what an actor builds from the base's files and the adapter's, bit for bit. Both merge
by :func:`protocol.adapter.merged`, of the base as it was pushed and of factors on their grid, whose product has one
value whatever part of a matrix a device or a file has.
"""

from __future__ import annotations

from collections.abc import Iterator

import jax
import numpy as np

from learner import mesh as meshes
from learner.models.parameters import Parameter
from protocol import adapter


def pushed_adapters(adapters: dict, rank: int) -> dict:
    """The adapters as they are pushed: on the host of every process, float32, each layer's factor on its grid."""

    def grid(x) -> np.ndarray:
        return np.stack([adapter.on_grid(factor, rank) for factor in _whole(x)])

    return jax.tree.map(grid, adapters)


def merged_params(base: dict, pushed: dict, scale: float) -> dict:
    """The parameter tree of the merged model, in the base's dtype and sharding; what has no adapter is the base's own.

    Each process merges the shards of its own devices, one at a time, on the host.
    """

    def merge(below: dict, adapters: dict) -> dict:
        if "lora_a" in adapters:
            return {"kernel": _merged(below["kernel"], adapters["lora_a"], adapters["lora_b"], scale)}
        return {name: merge(x, adapters[name]) if name in adapters else x for name, x in below.items()}

    return merge(base, pushed)


def adapter_tensors(declared: dict, pushed: dict) -> Iterator[tuple[str, np.ndarray]]:
    """(PEFT's name, float32 in PEFT's orientation) of every factor of pushed adapters."""
    leaves: list[Parameter] = jax.tree.leaves(declared)
    for parameter, stack in zip(leaves, jax.tree.leaves(pushed), strict=True):
        for name, factor in zip(parameter.names, stack, strict=True):
            yield name, factor.T


def _merged(kernel: jax.Array, a: np.ndarray, b: np.ndarray, scale: float) -> jax.Array:
    """``kernel`` [L, in, out] with the term of ``a`` [L, in, rank] and ``b`` [L, rank, out]."""

    def shard(index: tuple[slice, ...], own: np.ndarray) -> np.ndarray:
        layers, inputs, outputs = index
        out = np.empty_like(own)
        for i, (base, x, y) in enumerate(zip(own, a[layers, inputs], b[layers, :, outputs], strict=True)):
            out[i] = adapter.merged(base.T.astype(np.float32), x.T, y.T, scale).T.astype(own.dtype)
        return out

    shards = [jax.device_put(shard(s.index, np.asarray(s.data)), s.data.sharding) for s in kernel.addressable_shards]
    return jax.make_array_from_single_device_arrays(kernel.shape, kernel.sharding, shards)


def _whole(x: jax.Array) -> np.ndarray:
    """``x`` on the host of every process."""
    if x.is_fully_addressable:
        return np.asarray(x)
    replicated = jax.jit(lambda x: x, out_shardings=meshes.replicated(x.sharding.mesh))(x)
    return np.asarray(replicated.addressable_data(0))
