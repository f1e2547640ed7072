"""Hugging Face model folders: config.json parsed, safetensors in and out.

Invariant: one map names every parameter. A tensor that the map doesn't know, or that a folder lacks, is an
error and never a silent re-initialisation. Hugging Face stores a linear layer as [out, in]; ours are
[in, out], and layers are stacked on a leading axis.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np

from learner.models.qwen3 import Qwen3, Qwen3Config
from protocol.config import ConfigError

_LAYER = {
    f"{name}/{leaf}": (f"model.layers.{{}}.{hf}{name}.weight", leaf == "kernel")
    for leaf, hf, names in (
        ("kernel", "self_attn.", ("q_proj", "k_proj", "v_proj", "o_proj")),
        ("kernel", "mlp.", ("gate_proj", "up_proj", "down_proj")),
        ("scale", "self_attn.", ("q_norm", "k_norm")),
        ("scale", "", ("input_layernorm", "post_attention_layernorm")),
    )
    for name in names
}
_TOP = {
    "embed_tokens": ("model.embed_tokens.weight", False),
    "norm/scale": ("model.norm.weight", False),
    "lm_head": ("lm_head.weight", True),
}
_DTYPES = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def read_config(folder: str | Path, **computation: Any) -> Qwen3Config:
    """Sizes from ``folder/config.json``; ``computation`` sets param_dtype, compute_dtype, remat.

    Raises :class:`ConfigError` for a folder, an architecture or a feature that can't be trained.
    """
    path = Path(folder) / "config.json"
    try:
        tree = json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"model.folder: cannot read {path} ({error.strerror}); it names no model folder") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if tree.get("model_type") != "qwen3":
        raise ConfigError(f"{path}: model_type {tree.get('model_type')!r} can't be trained yet; known: 'qwen3'")
    if tree.get("attention_bias") or tree.get("hidden_act", "silu") != "silu" or tree.get("use_sliding_window"):
        raise ConfigError(f"{path}: attention_bias, use_sliding_window and a hidden_act but silu are not supported")
    rope = tree.get("rope_parameters") or tree.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise ConfigError(f"{path}: rotary scaling {rope} is not supported; only plain rotary positions are")
    try:
        return Qwen3Config(
            vocab_size=tree["vocab_size"],
            hidden_size=tree["hidden_size"],
            intermediate_size=tree["intermediate_size"],
            num_hidden_layers=tree["num_hidden_layers"],
            num_attention_heads=tree["num_attention_heads"],
            num_key_value_heads=tree.get("num_key_value_heads", tree["num_attention_heads"]),
            head_dim=tree.get("head_dim") or tree["hidden_size"] // tree["num_attention_heads"],
            rope_theta=float(tree["rope_theta"] if "rope_theta" in tree else rope["rope_theta"]),
            rms_norm_eps=tree["rms_norm_eps"],
            tie_word_embeddings=tree.get("tie_word_embeddings", False),
            **computation,
        )
    except KeyError as error:
        raise ConfigError(f"{path}: missing {error}") from error


def param_shapes(config: Qwen3Config):
    """The parameter tree as shapes and dtypes, nothing allocated."""
    row = jax.ShapeDtypeStruct((1, 8), np.int32)
    return jax.eval_shape(lambda *rows: Qwen3(config).init(jax.random.key(0), *rows)["params"], row, row, row)


def check_tensors(config: Qwen3Config, folder: str | Path) -> dict[str, np.ndarray]:
    """The folder's tensors, memory-mapped, after checking that they are this model's, one for one.

    Raises :class:`ConfigError` when a tensor is missing, unknown or of another shape.
    """
    tensors = open_tensors(folder)
    unknown = set(tensors)
    if config.tie_word_embeddings:
        unknown.discard("lm_head.weight")
    for path, leaf in jax.tree_util.tree_leaves_with_path(param_shapes(config)):
        name, transpose, stacked = _entry(path)
        shape = leaf.shape[1:] if stacked else leaf.shape
        for key in (name.format(i) for i in range(config.num_hidden_layers if stacked else 1)):
            if key not in tensors:
                raise ConfigError(f"{folder}: tensor {key} is missing")
            if tensors[key].shape != (shape[::-1] if transpose else shape):
                raise ConfigError(f"{folder}: tensor {key} is {tensors[key].shape}, which config.json contradicts")
            unknown.discard(key)
    if unknown:
        raise ConfigError(f"{folder}: {len(unknown)} tensors have no place in this model, first {min(unknown)}")
    return tensors


def load_params(config: Qwen3Config, folder: str | Path, shardings=None):
    """Parameters from the safetensors files of ``folder``, in ``config.param_dtype``, placed by ``shardings``.

    Raises as :func:`check_tensors` does.
    """
    tensors = check_tensors(config, folder)

    def leaf(path, shape):
        name, transpose, stacked = _entry(path)
        value = np.empty(shape.shape, shape.dtype)
        for i, part in enumerate(value if stacked else [value]):
            tensor = tensors[name.format(i)]
            part[...] = tensor.T if transpose else tensor
        return value

    params = jax.tree_util.tree_map_with_path(leaf, param_shapes(config))
    return jax.device_put(params, shardings)


def export_tensors(params, dtype: str) -> dict[str, np.ndarray]:
    """Parameters under their Hugging Face names, as host arrays of ``dtype``."""
    out = {}
    for path, value in jax.tree_util.tree_leaves_with_path(params):
        name, transpose, stacked = _entry(path)
        value = np.asarray(jax.device_get(value)).astype(_DTYPES["BF16" if dtype == "bfloat16" else "F32"])
        for key, tensor in ((name.format(i), v) for i, v in enumerate(value)) if stacked else ((name, value),):
            out[key] = np.ascontiguousarray(tensor.T if transpose else tensor)
    return out


def open_tensors(folder: str | Path) -> dict[str, np.ndarray]:
    """Every tensor of a folder's ``*.safetensors`` files, memory-mapped; raises :class:`ConfigError`.

    The format is eight bytes of header length, a JSON header {name: {dtype, shape, data_offsets}}, the data.
    """
    files = sorted(Path(folder).glob("*.safetensors"))
    if not files:
        raise ConfigError(f"{folder}: no *.safetensors file, so no weights; bin/warmstart makes a base policy's")
    tensors: dict[str, np.ndarray] = {}
    for file in files:
        try:
            with open(file, "rb") as stream:
                (length,) = struct.unpack("<Q", stream.read(8))
                header = json.loads(stream.read(length))
            header.pop("__metadata__", None)
            data = np.memmap(file, mode="r", offset=8 + length)
            for name, entry in header.items():
                start, end = entry["data_offsets"]
                if end > len(data):
                    raise ValueError(f"tensor {name} ends beyond the file")
                tensors[name] = data[start:end].view(_DTYPES[entry["dtype"]]).reshape(entry["shape"])
        except KeyError as error:
            raise ConfigError(f"{file}: dtype {error} is not supported; known: {', '.join(_DTYPES)}") from error
        except (ValueError, struct.error) as error:
            raise ConfigError(f"{file} is not a whole safetensors file: {error}") from error
    return tensors


def safetensors_bytes(tensors: Mapping[str, np.ndarray]) -> list[bytes | memoryview]:
    """A safetensors file in pieces: header, then each tensor's bytes, without a second copy of the data."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, value in tensors.items():
        header[name] = {
            "dtype": _NAMES[value.dtype],
            "shape": value.shape,
            "data_offsets": (offset, offset + value.nbytes),
        }
        offset += value.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return [struct.pack("<Q", len(text)) + text, *(memoryview(value.view(np.uint8)) for value in tensors.values())]


def _entry(path) -> tuple[str, bool, bool]:
    """(Hugging Face name, transposed, stacked over layers) of a parameter's path."""
    keys = [key.key for key in path]
    if keys[0] == "layers":
        return *_LAYER["/".join(keys[1:])], True
    return *_TOP["/".join(keys)], False
