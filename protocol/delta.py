"""What changed between two files of one length: where, and by how much.

Invariant: the changes from one file to another, applied to the one, give the other, bit for bit, whatever the two hold.

A weight file is words of two bytes behind its header: a bfloat16 value each, or half of a float32. At a learning rate
of 1e-6 few bfloat16 values change in an update, and most of those to a neighbouring value: about one in fifty where
weights are of deviation 0.02, one in two hundred where it is 0.15 (benchmarks/push.py). So the place of a change is
written as the gap since the one before it, a byte for most, or as a bit for every word where that is shorter; a change
as the difference of the bit patterns, a byte for most; and both are deflated, which takes another third.

A delta file is records one after another, each with its length (uint32, little-endian) before it. numpy only: both
learner and actors use it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

SUFFIX = ".delta"
"""A delta file's name is the weight file's with this behind it."""
STRETCH = 2**24
"""Bytes of a file that a record covers at most: what encoding takes in memory is a few times that."""
_LONG = 255
"""A byte of a gap that says: 255 and what the next byte says."""
_FAR = -128
"""A step that says: see ``far``."""


class Change(msgspec.Struct, frozen=True, array_like=True):
    """The changed words of one stretch of a file."""

    start: int
    """Of the stretch in the file, in bytes."""
    words: int
    """Length of the stretch."""
    count: int
    """Changed words."""
    coding: Literal["gaps", "mask"]
    places: bytes
    """Deflated. ``gaps``: unchanged words before each changed one, in bytes whose last is below 255, to be summed;
    ``mask``: a bit for each word, the first in the highest bit."""
    steps: bytes
    """Deflated int8 [count]: new less old bit pattern; -128: the next of ``far``."""
    far: bytes
    """int16, little-endian: the steps that no int8 holds, modulo 2^16."""

    def encode(self) -> bytes:
        """The record as it stands in a delta file."""
        data = msgspec.msgpack.encode(self)
        return struct.pack("<I", len(data)) + data


def changes(old: np.ndarray, new: np.ndarray, start: int) -> Iterator[Change]:
    """From ``old`` to ``new``, uint8 [n] each, n even: the bytes of two files from ``start`` on."""
    before, after = old.view("<u2"), new.view("<u2")
    step = STRETCH // 2
    for first in range(0, len(before), step):
        stretch = slice(first, first + step)
        change = _change(before[stretch], after[stretch], start + 2 * first)
        if change is not None:
            yield change


def apply(change: Change, file: np.ndarray) -> None:
    """Make the change in ``file``, uint8, the whole of it. Raises ValueError for one that doesn't fit it."""
    end = change.start + 2 * change.words
    if not 0 <= change.start <= end <= len(file):
        raise ValueError(f"a change of bytes {change.start} to {end} in a file of {len(file)}")
    words = file[change.start : end].view("<u2")
    places, steps = _places(change), _steps(change)
    if len(places) != change.count or len(steps) != change.count or (len(places) and places[-1] >= change.words):
        raise ValueError(f"a record of {change.count} changes names {len(places)} places and {len(steps)} steps")
    # Modulo 2^16, as unsigned words are added.
    words[places] += steps.view("<u2")


def read(path: Path) -> Iterator[Change]:
    """The records of a delta file. Raises ValueError for one that is none, or that is cut, and OSError."""
    with path.open("rb") as stream:
        while head := stream.read(4):
            if len(head) < 4:
                raise ValueError(f"{path} ends in the length of a record")
            (length,) = struct.unpack("<I", head)
            data = stream.read(length)
            if len(data) < length:
                raise ValueError(f"{path} ends within a record")
            try:
                yield msgspec.msgpack.decode(data, type=Change)
            except msgspec.MsgspecError as error:
                raise ValueError(f"{path} holds a record that is none: {error}") from error


def _change(old: np.ndarray, new: np.ndarray, start: int) -> Change | None:
    changed = old != new
    places = np.flatnonzero(changed)
    if not len(places):
        return None
    steps = (new[places] - old[places]).view("<i2")
    near = np.abs(steps.astype(np.int32)) < -_FAR
    coding, coded = "gaps", _gaps(places)
    if 8 * len(coded) > len(old):
        coding, coded = "mask", np.packbits(changed)
    return Change(
        start,
        len(old),
        len(places),
        coding,
        _deflated(coded),
        _deflated(np.where(near, steps, _FAR).astype(np.int8)),
        steps[~near].tobytes(),
    )


def _gaps(places: np.ndarray) -> np.ndarray:
    gaps = np.diff(places, prepend=-1) - 1
    ends = np.cumsum(gaps // _LONG + 1) - 1
    out = np.full(ends[-1] + 1, _LONG, np.uint8)
    out[ends] = gaps % _LONG
    return out


def _places(change: Change) -> np.ndarray:
    coded = np.frombuffer(_inflated(change.places), np.uint8)
    if change.coding == "mask":
        return np.flatnonzero(np.unpackbits(coded, count=change.words))
    before = np.cumsum(coded, dtype=np.int64)[coded != _LONG]
    return before + np.arange(len(before))


def _steps(change: Change) -> np.ndarray:
    steps, far = np.frombuffer(_inflated(change.steps), np.int8).astype("<i2"), np.frombuffer(change.far, "<i2")
    marked = steps == _FAR
    if np.count_nonzero(marked) != len(far):
        raise ValueError(f"a record of {len(far)} far steps marks {np.count_nonzero(marked)}")
    steps[marked] = far
    return steps


def _deflated(values: np.ndarray) -> bytes:
    return zlib.compress(values.tobytes(), 1)


def _inflated(data: bytes) -> bytes:
    try:
        return zlib.decompress(data)
    except zlib.error as error:
        raise ValueError(f"a record that can't be inflated: {error}") from error
