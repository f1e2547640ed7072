"""The complete weight files of a base and a low-rank adapter.

Invariant: every file is byte for byte what the learner would have pushed as complete weights: the base file's own
header, and its tensors in its order and its dtypes, those with a low-rank term merged and rounded once. A block of rows
of one tensor is in memory at a time.

numpy only: the actor's environment has no JAX, and numpy no bfloat16.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from protocol import adapter
from rollout_engine.actors.digests import WeightsDamaged

BLOCK = 2**22
"""Values merged at a time: 32 MiB in float64."""


class LowRank(NamedTuple):
    """The term of one tensor: scale * b [out, rank] @ a [rank, in], float32."""

    a: np.ndarray
    b: np.ndarray
    scale: float


def merge_files(base: Path, folder: Path, out: Path) -> None:
    """Write the merged files of the adapter in ``folder`` and of ``base``'s ``*.safetensors`` into ``out``, which is
    there. Raises :class:`WeightsDamaged`, and OSError."""
    terms = read_adapter(folder)
    files = sorted(base.glob("*.safetensors"))
    if not files:
        raise WeightsDamaged(f"{base} holds no *.safetensors file, so nothing that an adapter could go onto")
    merged = set()
    for file in files:
        with (out / file.name).open("wb") as stream:
            merged |= _merge_file(file, terms, stream)
    if left := terms.keys() - merged:
        raise WeightsDamaged(f"{folder} has terms for {len(left)} tensors that {base} lacks, first {min(left)}")


def read_adapter(folder: Path) -> dict[str, LowRank]:
    """The terms of a PEFT folder, by the name of the tensor that each goes onto; raises :class:`WeightsDamaged`."""
    try:
        settings = json.loads((folder / adapter.CONFIG).read_bytes())
        scale = settings["lora_alpha"] / settings["r"]
        _, tensors, data = _open(folder / adapter.WEIGHTS)
        factors = {name: _floats(data, entry) for name, entry in tensors.items()}
        modules = {name.removesuffix(adapter.A) for name in factors if name.endswith(adapter.A)}
        if factors.keys() != {module + end for module in modules for end in (adapter.A, adapter.B)}:
            raise ValueError("its tensors are not pairs of lora_A and lora_B")
        return {
            f"{module.removeprefix(adapter.PREFIX)}.weight": LowRank(
                factors[module + adapter.A], factors[module + adapter.B], scale
            )
            for module in modules
        }
    except OSError as error:
        raise WeightsDamaged(f"{folder} can't be read as an adapter: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, ZeroDivisionError, struct.error) as error:
        raise WeightsDamaged(f"{folder} is no adapter: {type(error).__name__}: {error}") from error


def _merge_file(file: Path, terms: dict[str, LowRank], stream: BinaryIO) -> set[str]:
    """Write a file's merged counterpart; returns the names of the tensors that have a term."""
    try:
        header, tensors, data = _open(file)
    except (ValueError, KeyError, struct.error) as error:
        raise WeightsDamaged(f"{file} is not a whole safetensors file: {error}") from error
    stream.write(header)
    for name, entry in sorted(tensors.items(), key=lambda item: item[1]["data_offsets"]):
        start, end = entry["data_offsets"]
        if (term := terms.get(name)) is None:
            stream.write(data[start:end])
            continue
        if tuple(entry["shape"]) != (term.b.shape[0], term.a.shape[1]):
            raise WeightsDamaged(
                f"tensor {name} is {entry['shape']}, its low-rank term [{term.b.shape[0]}, {term.a.shape[1]}]"
            )
        for block in _merged(data, entry, term):
            stream.write(block)
    return terms.keys() & tensors.keys()


def _merged(data: np.ndarray, entry: dict, term: LowRank) -> Iterator[memoryview]:
    """The bytes of a merged tensor, a block of rows at a time."""
    rows, columns = entry["shape"]
    start = entry["data_offsets"][0]
    narrow = entry["dtype"] == "BF16"
    size = columns * (2 if narrow else 4)
    step = max(1, BLOCK // columns)
    for first in range(0, rows, step):
        last = min(first + step, rows)
        part = {**entry, "shape": (last - first, columns), "data_offsets": (start + first * size, start + last * size)}
        block = adapter.merged(_floats(data, part), term.a, term.b[first:last], term.scale)
        yield memoryview((adapter.bfloat16_bits(block) if narrow else block).reshape(-1).view(np.uint8))


def _floats(data: np.ndarray, entry: dict) -> np.ndarray:
    """A tensor as float32; raises :class:`WeightsDamaged` for a dtype that can't be merged."""
    start, end = entry["data_offsets"]
    raw = data[start:end]
    match entry["dtype"]:
        case "F32":
            flat = raw.view("<f4")
        case "BF16":
            flat = adapter.from_bfloat16_bits(raw.view("<u2"))
        case other:
            raise WeightsDamaged(f"dtype {other} can't be merged; known: F32, BF16")
    return flat.reshape(entry["shape"])


def _open(file: Path) -> tuple[bytes, dict[str, dict], np.ndarray]:
    """(the header's bytes with its length, its entries by tensor, the data, mapped)."""
    with file.open("rb") as stream:
        start = stream.read(8)
        (length,) = struct.unpack("<Q", start)
        header = stream.read(length)
    tensors = json.loads(header)
    tensors.pop("__metadata__", None)
    data = np.memmap(file, mode="r", offset=8 + length)
    if any(entry["data_offsets"][1] > len(data) for entry in tensors.values()):
        raise ValueError("a tensor ends beyond the file")
    return start + header, tensors, data
