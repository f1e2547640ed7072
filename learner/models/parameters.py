"""What a family's parameters are.

Invariant: one declaration says a parameter's place in the tree, its shape, its start and its Hugging Face name, so
that nothing is loaded, exported or initialised that the others don't know.

Hugging Face stores a linear layer as [out, in]; ours is [in, out] (``transposed``). Parameters of the layers are
stacked on a leading axis, over which the layers are scanned.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class Parameter:
    """One parameter of one layer, or of none."""

    name: str
    """The tensor's name; ``{}`` stands for the layer's number."""
    shape: tuple[int, ...]
    """Ours, of one layer."""
    init: float | Literal["ones", "zeros", "log_decay"]
    """Standard deviation of a normal start, or what else it starts as."""
    transposed: bool = False
    layers: tuple[int, ...] | None = None
    """The layers stacked on the leading axis, ascending; None: of no layer."""

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors that this parameter is made of, in the order of its leading axis."""
        return (self.name,) if self.layers is None else tuple(self.name.format(layer) for layer in self.layers)

    @property
    def file_shape(self) -> tuple[int, ...]:
        """The shape of each of its tensors."""
        return self.shape[::-1] if self.transposed else self.shape

    @property
    def stacked_shape(self) -> tuple[int, ...]:
        return self.shape if self.layers is None else (len(self.layers), *self.shape)


def kernel(name: str, inputs: int, outputs: int) -> dict[str, Parameter]:
    """A linear layer without bias."""
    return {"kernel": Parameter(f"{name}.weight", (inputs, outputs), inputs**-0.5, transposed=True)}


def scale(name: str, width: int, init: Literal["ones", "zeros"] = "ones") -> dict[str, Parameter]:
    """The scale of a norm."""
    return {"scale": Parameter(f"{name}.weight", (width,), init)}


def stack(tree: dict, prefix: str, layers: range | list[int]) -> dict:
    """The declarations of one layer as those of ``layers``."""
    return jax.tree.map(lambda p: replace(p, name=f"{prefix}layers.{{}}.{p.name}", layers=tuple(layers)), tree)


def shapes(tree: dict, dtype: str) -> dict:
    """The parameter tree as shapes, nothing allocated."""
    return jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.stacked_shape, jnp.dtype(dtype)), tree)


def joined(tree: dict, more: dict) -> dict:
    """``tree`` with what ``more`` has at the same places and below."""
    return tree | {k: joined(tree[k], x) if isinstance(tree.get(k), dict) else x for k, x in more.items()}


def initialise(tree: dict, dtype: str, key: jax.Array) -> dict:
    """Fresh parameters; each has a key of its own, by its place in the tree."""
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(structure, [_start(p, dtype, k) for p, k in zip(leaves, keys, strict=True)])


def _start(parameter: Parameter, dtype: str, key: jax.Array) -> jax.Array:
    match parameter.init:
        case "ones":
            return jnp.ones(parameter.stacked_shape, dtype)
        case "zeros":
            return jnp.zeros(parameter.stacked_shape, dtype)
        case "log_decay":
            return jnp.log(jax.random.uniform(key, parameter.stacked_shape, minval=0.01, maxval=16.0)).astype(dtype)
        case deviation:
            return (jax.random.normal(key, parameter.stacked_shape) * deviation).astype(dtype)
