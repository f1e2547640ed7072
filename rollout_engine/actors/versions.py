"""Policy versions as folders of complete weight files, whatever form they were announced in.

Invariant: :meth:`Versions.materialise` returns a folder whose safetensors files are, digest for digest, the complete
weights of the version, or raises :class:`WeightsDamaged`. What serves meanwhile is untouched.

numpy only: the sidecar imports neither JAX nor torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from protocol.records import PolicyVersion


class WeightsDamaged(Exception):
    """Weight files are not those that were announced."""


class Versions:
    """The versions of a run as one actor sees them. ``run`` is the run's folder, which announced folders are
    relative to."""

    def __init__(self, run: Path):
        self._run = run

    def materialise(self, version: PolicyVersion) -> Path:
        """A folder with the complete files of ``version``. Reads whole models: call it in a thread.

        Raises :class:`WeightsDamaged`.
        """
        folder = self._announced(version)
        match version.form:
            case "full":
                verify_digests(folder, version.sha256)
                return folder
            case form:
                raise WeightsDamaged(f"{folder} is announced in the form {form!r}, which this actor can't build from")

    def _announced(self, version: PolicyVersion) -> Path:
        return (self._run / version.folder).resolve()


def verify_digests(folder: Path, sha256: Mapping[str, str]) -> None:
    """Raise :class:`WeightsDamaged` unless the folder's safetensors files are exactly those announced."""
    present = {file.name for file in folder.glob("*.safetensors")}
    for name in sorted(present ^ sha256.keys()):
        raise WeightsDamaged(f"{folder / name} was announced but is not there" if name in sha256 else
                             f"{folder / name} is there but was not announced")  # fmt: skip
    for name, expected in sha256.items():
        try:
            with (folder / name).open("rb") as file:
                actual = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            # Removed meanwhile, for newer ones are there, or a disk that can't be read just now.
            raise WeightsDamaged(f"{folder / name} can't be read: {error.strerror}") from error
        if actual != expected:
            raise WeightsDamaged(f"{folder / name} has sha256 {actual}, announced was {expected}")
