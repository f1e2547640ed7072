"""The named mesh (data, model) and where every array lives on it.

Invariant: the mesh changes where numbers are, never what they are. One rule per leaf decides a parameter's
sharding; gradients and optimizer state follow their parameter. On a 1x1 mesh every rule here is the identity.
"""

from __future__ import annotations

import math
import re
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from protocol.config import ConfigError

DATA, MODEL = "data", "model"

Path = tuple[Any, ...]


def parse_mesh(text: str) -> tuple[int, int]:
    """``"3x8"`` as (3, 8); raises :class:`ConfigError`."""
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
    if not match:
        raise ConfigError(f"mesh {text!r} is not DATAxMODEL, for example 1x1 or 3x8")
    return int(match[1]), int(match[2])


def make_mesh(text: str) -> Mesh:
    """The mesh named by ``text`` over the first devices; raises :class:`ConfigError` when there are too few."""
    rows, columns = parse_mesh(text)
    devices = jax.devices()
    if rows * columns > len(devices):
        raise ConfigError(
            f"mesh {text} needs {rows * columns} devices and JAX sees {len(devices)} ({devices[0].platform}); "
            f"on a CPU, XLA_FLAGS=--xla_force_host_platform_device_count={rows * columns} makes virtual ones"
        )
    if jax.process_count() > 1 and rows * columns < len(devices):
        raise ConfigError(
            f"mesh {text} takes {rows * columns} of the {len(devices)} devices of {jax.process_count()} processes: it "
            "must be of all of them"
        )
    return jax.make_mesh(
        (rows, columns), (DATA, MODEL), axis_types=(AxisType.Auto, AxisType.Auto), devices=devices[: rows * columns]
    )


def leaf_spec(shape: tuple[int, ...], mesh: Mesh, stacked: bool = False, columns: bool = False) -> PartitionSpec:
    """How one parameter is split: its largest dimension that all devices divide, over all devices; else its
    largest that ``model`` divides, over ``model``; else not at all. What is no matrix is replicated (a norm's scale is
    worth less than the collective that gathers it), and the leading layer axis of a ``stacked`` leaf is never
    split, because the scan over layers reads it one layer at a time. ``columns``: the last dimension is tried first,
    over all and over ``model``."""
    first = 1 if stacked else 0
    if len(shape) - first != 2:
        return PartitionSpec()
    by_size = sorted(range(first, len(shape)), key=lambda axis: -shape[axis])
    choices = [(axis, names) for names in ((DATA, MODEL), (MODEL,)) for axis in by_size]
    if columns:
        choices.sort(key=lambda choice: choice[0] != len(shape) - 1)
    for axis, names in choices:
        if shape[axis] % math.prod(mesh.shape[name] for name in names) == 0:
            return PartitionSpec(*[None] * axis, names)
    return PartitionSpec()


def is_stacked(path: Path) -> bool:
    """Whether the parameter at ``path`` (of :func:`jax.tree_util.tree_map_with_path`) has a leading layer axis."""
    return any(getattr(key, "key", None) == "layers" for key in path)


def is_matrix(path: Path, leaf) -> bool:
    """Whether it is a matrix in each layer: not a norm's scale, nor what a recurrence or a convolution reads."""
    return len(leaf.shape) - is_stacked(path) == 2


def param_shardings(params, mesh: Mesh, memory: str = "device"):
    """A tree of :class:`NamedSharding` for a parameter tree (arrays or shapes), in memory kind ``memory``.

    The embedding is split by columns, so that a device looks up its part of every token and none gathers the table.
    """

    def sharding(path, leaf):
        columns = getattr(path[-1], "key", None) == "embed_tokens"
        spec = leaf_spec(leaf.shape, mesh, is_stacked(path), columns)
        return NamedSharding(mesh, spec, memory_kind=memory_kind(mesh, memory))

    return jax.tree_util.tree_map_with_path(sharding, params)


def memory_kind(mesh: Mesh, memory: str) -> str:
    """``memory`` as the devices of ``mesh`` call it: their default kind for ``"device"``."""
    return mesh.devices.flat[0].default_memory().kind if memory == "device" else memory


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def rows_sharding(mesh: Mesh) -> NamedSharding:
    """Rows of packed tokens [rows, ...] are split over ``data``."""
    return NamedSharding(mesh, PartitionSpec(DATA))


def own_rows(mesh: Mesh, count: int) -> slice:
    """Of ``count`` rows split over ``data``, those that lie on devices of this process."""
    each = count // len(mesh.devices)
    shards = _shards(mesh)
    return slice(shards[0] * each, (shards[-1] + 1) * each)


def own_shards(mesh: Mesh) -> int:
    """Parts of the ``data`` axis that lie on devices of this process."""
    return len(_shards(mesh))


def _shards(mesh: Mesh) -> list[int]:
    here = jax.process_index()
    return [d for d, row in enumerate(mesh.devices) if any(device.process_index == here for device in row)]


def size(axis: str) -> int:
    """Devices along ``axis`` of the mesh in scope; 1 without one."""
    return jax.sharding.get_abstract_mesh().shape.get(axis, 1)


def divides(axis: str, dimension: int) -> bool:
    """Whether ``axis`` of the mesh in scope splits ``dimension`` evenly."""
    return dimension % size(axis) == 0


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
    """Ask for ``x`` to be split along ``axes`` of the mesh in scope; axes that don't divide their dimension
    are dropped, and without a mesh (a parity test, a laptop's notebook) ``x`` is returned as it is."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return x
    spec = [name if name and divides(name, x.shape[i]) else None for i, name in enumerate(axes)]
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*spec))


def product(x: jax.Array, matrix: jax.Array, precision: jax.lax.Precision | None = None) -> jax.Array:
    """``x`` [R, T, in] with rows over ``data`` and sequences over ``model``, times one layer's ``matrix`` [in, out],
    split as its parameter is (:func:`leaf_spec`) -> [R, T, out], split as ``x``.

    Each device gathers the matrix, in the dtype that it comes in, and multiplies its own tokens with it; backward it
    gathers it again, and the matrix's gradient is summed into its parts and never whole. XLA, left to itself, may
    rather gather tokens.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return jnp.dot(x, matrix, precision=precision)
    tokens = PartitionSpec(*(name if divides(name, x.shape[i]) else None for i, name in enumerate((DATA, MODEL))), None)
    parts = leaf_spec(matrix.shape, mesh)

    def local(x, matrix):
        for axis, names in enumerate(parts):
            if names:
                matrix = jax.lax.all_gather(matrix, names, axis=axis, tiled=True)
        return jnp.dot(x, matrix, precision=precision)

    return jax.shard_map(local, mesh=mesh, in_specs=(tokens, parts), out_specs=tokens, check_vma=False)(x, matrix)
