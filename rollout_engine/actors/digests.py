"""Weight files against the digests that were announced.

Invariant: a folder passes only when its safetensors files are exactly those announced, byte for byte. Files are read in
parallel, for a hash is slower than a disk.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_READERS = 4


class WeightsDamaged(Exception):
    """Weight files are not those that were announced."""


def verify_digests(folder: Path, sha256: Mapping[str, str]) -> None:
    """Raise :class:`WeightsDamaged` unless the folder's safetensors files are exactly those announced."""
    present = {file.name for file in folder.glob("*.safetensors")}
    for name in sorted(present ^ sha256.keys()):
        raise WeightsDamaged(f"{folder / name} was announced but is not there" if name in sha256 else
                             f"{folder / name} is there but was not announced")  # fmt: skip
    verify_files(folder, sha256)


def verify_files(folder: Path, sha256: Mapping[str, str]) -> None:
    """Raise :class:`WeightsDamaged` unless each named file is there and has its digest."""
    with ThreadPoolExecutor(_READERS) as readers:
        for name, actual in zip(sha256, readers.map(lambda name: _digest(folder / name), sha256), strict=True):
            if actual != sha256[name]:
                raise WeightsDamaged(f"{folder / name} has sha256 {actual}, announced was {sha256[name]}")


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        # Removed meanwhile, for newer ones are there, or a disk that can't be read just now.
        raise WeightsDamaged(f"{path} can't be read: {error.strerror}") from error
