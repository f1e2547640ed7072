"""The safetensors format: a folder's tensors read in place, a file written as its tensors come.

Invariant: nothing holds a model. Reading maps files into memory, and pages come and go; writing takes one tensor at a
time. The format is eight bytes of header length, a JSON header {name: {dtype, shape, data_offsets}}, the data.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from protocol.config import ConfigError

_DTYPES = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class TensorSpec(NamedTuple):
    """What a file's header says of a tensor."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def open_tensors(folder: str | Path) -> dict[str, np.ndarray]:
    """Every tensor of a folder's ``*.safetensors`` files, memory-mapped; raises :class:`ConfigError`."""
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
                if name in tensors:
                    raise ValueError(f"tensor {name} is in another file of the folder, too")
                tensors[name] = data[start:end].view(_DTYPES[entry["dtype"]]).reshape(entry["shape"])
        except KeyError as error:
            raise ConfigError(f"{file}: dtype {error} is not supported; known: {', '.join(_DTYPES)}") from error
        except (ValueError, struct.error) as error:
            raise ConfigError(f"{file} is not a whole safetensors file: {error}") from error
    return tensors


def file_pieces(specs: Mapping[str, TensorSpec], tensors: Iterable[np.ndarray]) -> Iterator[bytes | memoryview]:
    """A safetensors file in pieces: header, then each tensor's bytes. ``tensors`` come in the order of ``specs``."""
    yield file_header(specs)
    for (name, spec), tensor in zip(specs.items(), tensors, strict=True):
        yield tensor_bytes(name, spec, tensor)


def file_header(specs: Mapping[str, TensorSpec]) -> bytes:
    """What a file of these tensors begins with, a multiple of 8 bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, spec in specs.items():
        offsets = (offset, offset := offset + spec.nbytes)
        header[name] = {"dtype": _NAMES[spec.dtype], "shape": spec.shape, "data_offsets": offsets}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def tensor_bytes(name: str, spec: TensorSpec, tensor: np.ndarray) -> memoryview:
    """A tensor as it stands in a file; raises ValueError for one that isn't as announced."""
    if (tensor.shape, tensor.dtype) != spec:
        raise ValueError(f"tensor {name} is {tensor.dtype} {tensor.shape}, announced as {spec.dtype} {spec.shape}")
    return memoryview(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8))
