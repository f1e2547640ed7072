"""Hugging Face model folders in and out, a tensor and a device's shard at a time.

Invariant: the family's declarations name every tensor. One that they don't know, that a folder lacks or that has
another shape is an error and never a silent re-initialisation. No second copy of the model is made on the host: loading
reads each device's slice from the mapped file straight to that device, exporting takes one layer's tensor from the
devices at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, SingleDeviceSharding

from learner.models.families import read_config
from learner.models.family import ModelConfig
from learner.models.parameters import Parameter, initialise, shapes
from learner.models.tensor_files import TensorSpec, open_tensors
from learner.push.relay import Piece, host_tensors
from protocol.config import ConfigError

__all__ = [
    "carried_tensors",
    "check_tensors",
    "export_pieces",
    "export_specs",
    "export_tensors",
    "init_params",
    "load_params",
    "open_tensors",
    "param_shapes",
    "params_digest",
    "read_config",
]


def param_shapes(config: ModelConfig) -> dict:
    """The parameter tree as shapes and dtypes, nothing allocated."""
    return shapes(config.parameters(), config.param_dtype)


def init_params(config: ModelConfig, key: jax.Array) -> dict:
    """Fresh random parameters."""
    return initialise(config.parameters(), config.param_dtype, key)


def check_tensors(config: ModelConfig, folder: str | Path) -> dict[str, np.ndarray]:
    """The folder's tensors, memory-mapped, after checking that they are this model's, one for one.

    Raises :class:`ConfigError` when a tensor is missing, unknown or of another shape.
    """
    tensors = open_tensors(folder)
    unknown = {name for name in tensors if not config.carries(name)}
    if config.tie_word_embeddings:
        unknown.discard("lm_head.weight")
    for parameter in jax.tree.leaves(config.parameters()):
        for name in parameter.names:
            if name not in tensors:
                raise ConfigError(f"{folder}: tensor {name} is missing")
            if tensors[name].shape != parameter.file_shape:
                raise ConfigError(
                    f"{folder}: tensor {name} is {tensors[name].shape}, which config.json contradicts: "
                    f"it makes it {parameter.file_shape}"
                )
            unknown.discard(name)
    if unknown:
        raise ConfigError(f"{folder}: {len(unknown)} tensors have no place in this model, first {min(unknown)}")
    return tensors


def load_params(config: ModelConfig, folder: str | Path, shardings=None) -> dict:
    """Parameters from the safetensors files of ``folder``, in ``config.param_dtype``, placed by ``shardings`` (a tree
    of :class:`NamedSharding`; None: on the default device).

    What has arrived on each device is read again there and compared with what was read from the files. Raises as
    :func:`check_tensors` does, and for a shard that doesn't compare.
    """
    tensors = check_tensors(config, folder)
    tree = config.parameters()
    if shardings is None:
        shardings = jax.tree.map(lambda _: SingleDeviceSharding(jax.devices()[0]), tree)

    def load(parameter: Parameter, sharding: NamedSharding) -> jax.Array:
        shape, dtype = parameter.stacked_shape, np.dtype(config.param_dtype)
        shards = []
        for device, index in sharding.addressable_devices_indices_map(shape).items():
            value = _read(parameter, tensors, index, dtype)
            shard = jax.device_put(value, SingleDeviceSharding(device, memory_kind=sharding.memory_kind))
            if int(_digest(shard)) != _host_digest(value):
                raise ConfigError(f"{folder}: {parameter.name} did not arrive on {device} as it was read")
            shards.append(shard)
        return jax.make_array_from_single_device_arrays(shape, sharding, shards)

    return jax.tree.map(load, tree, shardings)


def params_digest(params: dict) -> str:
    """16 hex digits that name the values of a parameter tree, on any mesh and in any number of processes."""
    facts = [
        (jax.tree_util.keystr(path), leaf.shape, leaf.dtype.name, int(_place_digest(leaf)))
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    ]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def carried_tensors(config: ModelConfig, folder: str | Path) -> dict[str, np.ndarray]:
    """The tensors of a base folder that are not the language model's and go with every export, memory-mapped."""
    return {name: tensor for name, tensor in open_tensors(folder).items() if config.carries(name)}


def export_specs(config: ModelConfig, dtype: str) -> dict[str, TensorSpec]:
    """Name, shape and dtype of every tensor that :func:`export_tensors` makes, in its order."""
    leaves = jax.tree.leaves(config.parameters())
    return {name: TensorSpec(leaf.file_shape, jnp.dtype(dtype)) for leaf in leaves for name in leaf.names}


def export_tensors(config: ModelConfig, params: dict, dtype: str) -> Iterator[tuple[str, np.ndarray]]:
    """(Hugging Face name, host array of ``dtype``) of every parameter, one tensor at a time, in one process."""
    pieces = export_pieces(config, params, 1)
    names = (name for leaf in jax.tree.leaves(config.parameters()) for name in leaf.names)
    for name, (_, tensor) in zip(names, host_tensors(pieces, dtype, 1), strict=True):
        yield name, tensor


def export_pieces(config: ModelConfig, params: dict, writers: int) -> list[Piece]:
    """Every tensor, in the order of :func:`export_specs`, dealt out to ``writers`` in turn."""
    tree = config.parameters()
    return [
        Piece(parameter, value, None if parameter.layers is None else i, number % writers)
        for number, (parameter, value, i) in enumerate(
            (parameter, value, i)
            for parameter, value in zip(jax.tree.leaves(tree), jax.tree.leaves(params), strict=True)
            for i in range(len(parameter.names))
        )
    ]


def _read(parameter: Parameter, tensors: dict[str, np.ndarray], index: tuple[slice, ...], dtype) -> np.ndarray:
    """The part ``index`` of the stacked parameter, from the files."""
    names, own = (parameter.names, index) if parameter.layers is None else (parameter.names[index[0]], index[1:])
    place = own[::-1] if parameter.transposed else own
    pieces = (tensors[name][place] for name in names)
    pieces = [piece.T if parameter.transposed else piece for piece in pieces]
    if parameter.layers is None:
        return np.ascontiguousarray(pieces[0], dtype)
    out = np.empty((len(pieces), *pieces[0].shape), dtype)
    for i, piece in enumerate(pieces):
        out[i] = piece
    return out


def _bits(dtype) -> type:
    return {2: np.uint16, 4: np.uint32}[np.dtype(dtype).itemsize]


@jax.jit
def _digest(x: jax.Array) -> jax.Array:
    """The sum of the bit patterns modulo 2^32: of a shard that lost or changed a value it is another."""
    return jnp.sum(jax.lax.bitcast_convert_type(x, _bits(x.dtype)).astype(jnp.uint32), dtype=jnp.uint32)


@jax.jit
def _place_digest(x: jax.Array) -> jax.Array:
    """Likewise, each value weighted by its place: values that changed places count, too."""
    place = jnp.zeros(x.shape, jnp.uint32)
    for axis, size in enumerate(x.shape):
        place = place * size + jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
    bits = jax.lax.bitcast_convert_type(x, _bits(x.dtype)).astype(jnp.uint32)
    return jnp.sum(bits * (2 * place + 1), dtype=jnp.uint32)


def _host_digest(x: np.ndarray) -> int:
    return int(np.sum(x.view(_bits(x.dtype)), dtype=np.uint32))
