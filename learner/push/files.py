"""One weight file of a version: complete, or what changed in it.

Invariant: the digest of the complete file is of the bytes that came, in every form; and what is kept of them for the
next version's changes is moved on only when this version's folder is in its place, so a write that failed can be made
again.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Protocol

import numpy as np

from protocol import delta


class Sink(Protocol):
    """Takes the bytes of a complete file, in order."""

    name: str
    """Of the file that is written."""
    complete: str
    """sha256 of the complete file, once finished."""
    written: str
    """sha256 of the file that was written."""

    def take(self, piece: bytes | memoryview) -> None: ...

    def finish(self) -> None:
        """Make the file durable."""
        ...

    def kept(self) -> np.ndarray | None:
        """The bytes of the complete file, where they are kept."""
        ...

    def close(self) -> None: ...


class WholeFile:
    """The complete file on disk; ``keep``: and in memory."""

    def __init__(self, folder: Path, name: str, size: int, keep: bool):
        self.name = name
        self._digest = hashlib.sha256()
        self._kept = np.empty(size, np.uint8) if keep else None
        self._offset = 0
        self._stream = (folder / name).open("wb")

    def take(self, piece: bytes | memoryview) -> None:
        self._digest.update(piece)
        self._stream.write(piece)
        if self._kept is not None:
            self._kept[self._offset : self._offset + len(piece)] = np.frombuffer(piece, np.uint8)
        self._offset += len(piece)

    def finish(self) -> None:
        _durable(self._stream)
        self.complete = self.written = self._digest.hexdigest()

    def kept(self) -> np.ndarray | None:
        return self._kept

    def close(self) -> None:
        self._stream.close()


class DigestAlone:
    """The complete file's digest, and no file: whoever builds it compares."""

    def __init__(self, name: str):
        self.name = name
        self._digest = hashlib.sha256()

    def take(self, piece: bytes | memoryview) -> None:
        self._digest.update(piece)

    def finish(self) -> None:
        self.complete = self.written = self._digest.hexdigest()

    def kept(self) -> None:
        return None

    def close(self) -> None:
        pass


class Changes:
    """What changed since ``before``, the bytes of the complete file as the last version had it."""

    def __init__(self, folder: Path, name: str, before: np.ndarray):
        self.name = name + delta.SUFFIX
        self._before = before
        self._complete, self._written = hashlib.sha256(), hashlib.sha256()
        self._changes: list[delta.Change] = []
        self._offset = 0
        self._stream = (folder / self.name).open("wb")

    def take(self, piece: bytes | memoryview) -> None:
        self._complete.update(piece)
        after = np.frombuffer(piece, np.uint8)
        before = self._before[self._offset : self._offset + len(after)]
        for change in delta.changes(before, after, self._offset):
            self._changes.append(change)
            record = change.encode()
            self._written.update(record)
            self._stream.write(record)
        self._offset += len(after)

    def finish(self) -> None:
        _durable(self._stream)
        self.complete, self.written = self._complete.hexdigest(), self._written.hexdigest()

    def kept(self) -> np.ndarray:
        for change in self._changes:
            delta.apply(change, self._before)
        self._changes = []
        return self._before

    def close(self) -> None:
        self._stream.close()


def _durable(stream) -> None:
    stream.flush()
    os.fsync(stream.fileno())
