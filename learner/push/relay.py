"""A parameter's layers from a mesh to the processes that write them, each whole in one process.

Invariant: nothing is gathered that isn't about to be written. A layer is cut out, rounded and turned on the devices,
and gathered between processes only: a device holds no more of it than its process's devices need to have it between
them, and the host one tensor at a time, put together from its own devices' shards.

A mesh of D x M devices is looked at with its axes split in two, the part between the processes and the part within
one: with 24 devices in three processes, ``data`` (3) is all between and ``model`` (8) all within; with two processes to
a row, ``model`` is 2 between and 4 within. A dimension that is split over both parts becomes a dimension for each, and
gathering the outer ones is all there is to do. What isn't split, every process has already.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from learner.models.parameters import Parameter
from protocol.config import ConfigError


class Piece(NamedTuple):
    """One tensor to be written."""

    parameter: Parameter
    value: jax.Array
    layer: int | None
    writer: int
    """Number of the file that it goes into."""


def host_tensors(pieces: Sequence[Piece], dtype: str, writers: int) -> Iterator[tuple[int, np.ndarray]]:
    """(writer, array of ``dtype``, as Hugging Face has it) of each piece whose writer is this process's, in order.

    A collective: every process goes through the same pieces. ``writers`` are equal parts of the mesh's devices, in
    their order, each within one process; one of them works at a time unless pieces are dealt out in turn. Raises
    :class:`ConfigError` for a mesh that can't be divided so.
    """
    ahead: deque[tuple[Piece, jax.Array]] = deque()
    leaf, moved = None, None
    for piece in pieces:
        if piece.value is not leaf:
            leaf, moved = piece.value, _on_device(piece.value)
        ahead.append((piece, _relaid(piece._replace(value=moved), dtype, writers)))
        # Every writer has one to read while the next ones are on their way.
        if len(ahead) > writers:
            yield from _read(*ahead.popleft(), writers)
    while ahead:
        yield from _read(*ahead.popleft(), writers)


def writers_of(value: jax.Array) -> int:
    """Processes that the mesh of ``value`` lies in: as many files are written."""
    return len({device.process_index for device in value.sharding.device_set})


def owner(value: jax.Array, writer: int, writers: int) -> int:
    """The process whose devices a writer's part of the mesh of ``value`` is."""
    return _devices(value, writer, writers)[0].process_index


def _on_device(value: jax.Array) -> jax.Array:
    """A leaf that lives in the host's memory, on its devices for as long as its layers are read."""
    sharding = value.sharding
    if isinstance(sharding, NamedSharding) and sharding.memory_kind == "pinned_host":
        return jax.device_put(value, NamedSharding(sharding.mesh, sharding.spec))
    return value


def _relaid(piece: Piece, dtype: str, writers: int) -> jax.Array:
    value, parameter = piece.value, piece.parameter
    if not isinstance(value.sharding, NamedSharding):
        return _cut(parameter.file_shape, dtype, parameter.transposed, None, None)(value, piece.layer)
    mesh = _split(value.sharding.mesh, writers)
    spec = (*value.sharding.spec, *[None] * (value.ndim - len(value.sharding.spec)))
    cells, before, after = _cells(parameter, spec if piece.layer is None else spec[1:], mesh)
    source, target = (NamedSharding(mesh, PartitionSpec(*names)) for names in (before, after))
    return _cut(cells, dtype, parameter.transposed, source, target)(value, piece.layer)


@cache
def _cut(cells: tuple[int, ...], dtype: str, transposed: bool, source, target):
    """The compiled function that takes a layer out of a leaf and brings it from ``source`` to ``target``."""

    def cut(value: jax.Array, layer):
        x = value if layer is None else jax.lax.dynamic_index_in_dim(value, layer, keepdims=False)
        x = x.astype(dtype)
        x = (x.T if transposed else x).reshape(cells)
        return x if source is None else jax.lax.with_sharding_constraint(x, source)

    return jax.jit(cut, out_shardings=target)


def _cells(parameter: Parameter, spec: tuple, mesh: Mesh) -> tuple[tuple[int, ...], list, list]:
    """(the file's tensor with a dimension for each part of an axis, how those are split, and how after gathering)."""
    cells, before, after = [], [], []
    sizes = list(zip(parameter.shape, spec, strict=True))
    for size, names in sizes[::-1] if parameter.transposed else sizes:
        names = () if names is None else (names,) if isinstance(names, str) else names
        parts = [f"{name}_{part}" for name in names for part in ("between", "within")]
        for part in parts:
            cells.append(mesh.shape[part])
            before.append(part)
            after.append(part if part.endswith("within") else None)
        cells.append(size // math.prod(mesh.shape[part] for part in parts))
        before.append(None)
        after.append(None)
    return tuple(cells), before, after


@cache
def _split(mesh: Mesh, writers: int) -> Mesh:
    """``mesh`` with each axis as two: between writers, and within one."""
    rows, columns = mesh.devices.shape
    size, rest = divmod(mesh.devices.size, writers)
    if rest or (columns % size and size % columns):
        raise ConfigError(
            f"a mesh of {rows}x{columns} can't be divided among {writers} processes: each must have whole rows of it, "
            "or an equal part of one row"
        )
    within = (1, size) if columns % size == 0 else (size // columns, columns)
    shape = (rows // within[0], within[0], columns // within[1], within[1])
    names = [f"{name}_{part}" for name in mesh.axis_names for part in ("between", "within")]
    return Mesh(mesh.devices.reshape(shape), names)


def _read(piece: Piece, value: jax.Array, writers: int) -> Iterator[tuple[int, np.ndarray]]:
    """The tensor on the host, where it is this process's to write."""
    devices = _devices(value, piece.writer, writers)
    if devices[0].process_index != jax.process_index():
        return
    shards = {str(s.index): s for s in value.addressable_shards if s.device in devices}.values()
    first = next(iter(shards))
    if len(shards) == 1:
        out = np.asarray(first.data)
    else:
        for shard in shards:
            shard.data.copy_to_host_async()
        out = np.empty(value.shape, value.dtype)
        for shard in shards:
            out[shard.index] = np.asarray(shard.data)
    yield piece.writer, out.reshape(piece.parameter.file_shape)


def _devices(value: jax.Array, writer: int, writers: int) -> Sequence:
    """The writer's part of the mesh."""
    if not isinstance(value.sharding, NamedSharding):
        return list(value.sharding.device_set)
    devices = value.sharding.mesh.devices.reshape(-1)
    size = len(devices) // writers
    return list(devices[writer * size : (writer + 1) * size])
