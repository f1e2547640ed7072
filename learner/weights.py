"""Policy versions on disk: what the learner hands to the actors.

Invariant: a version's folder appears whole or not at all (it is written beside its place and renamed), it is a
complete Hugging Face model folder, and what is announced is what was written: the digests are of the bytes on
disk and the probe is computed with the weights as rounded to the pushed dtype.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from pathlib import Path

from learner.models.huggingface import export_tensors, safetensors_bytes
from protocol.config import ConfigError
from protocol.records import PolicyVersion, Probe

WEIGHTS = "model.safetensors"
COMPANIONS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)


def write_tensors(path: Path, params, dtype: str) -> str:
    """Write one safetensors file atomically and durably; returns its sha256."""
    digest = hashlib.sha256()
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    with open(beside, "wb") as stream:
        for piece in safetensors_bytes(export_tensors(params, dtype)):
            digest.update(piece)
            stream.write(piece)
        stream.flush()
        os.fsync(stream.fileno())
    beside.replace(path)
    return digest.hexdigest()


class WeightStore:
    """The folder ``runs/RUN/weights``: one subfolder a version, ``v000012``."""

    def __init__(self, folder: Path, base: Path, dtype: str, keep: int):
        """``base``: the model folder whose tokenizer and configuration go with every version."""
        self.folder, self.base, self.dtype, self.keep = folder, base, dtype, keep
        if not (base / "config.json").exists():
            raise ConfigError(f"model.folder {base} has no config.json; it must name a Hugging Face model folder")
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, run: str, version: int, params, probe: Probe, final: bool = False) -> PolicyVersion:
        """Write ``params`` as ``version``, prune old versions, and return the announcement.

        Writing a version again (after a restart) replaces it; equal weights have equal digests.
        """
        place = self.folder / f"v{version:06d}"
        beside = self.folder / f".{place.name}.{os.getpid()}.part"
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        for name in COMPANIONS:
            if (self.base / name).exists():
                shutil.copyfile(self.base / name, beside / name)
        digest = write_tensors(beside / WEIGHTS, params, self.dtype)
        if not place.exists():
            beside.rename(place)
        elif file_digest(place / WEIGHTS) == digest:
            shutil.rmtree(beside)
        else:
            old = place.rename(self.folder / f".{place.name}.{os.getpid()}.old")
            beside.rename(place)
            shutil.rmtree(old)
        self.prune(version)
        return PolicyVersion(run, version, str(place.resolve()), {WEIGHTS: digest}, probe, final)

    def prune(self, newest: int) -> None:
        """Remove all but version 0 and the last ``keep`` versions up to ``newest``, and leavings of killed runs."""
        for entry in self.folder.iterdir():
            match = re.fullmatch(r"v(\d{6,})", entry.name)
            if match and 0 < int(match[1]) <= newest - self.keep:
                shutil.rmtree(entry)
            elif re.fullmatch(r"\.v\d+\.\d+\.(part|old)", entry.name):
                shutil.rmtree(entry)


def file_digest(path: Path) -> str:
    """sha256 of a file, or "" when there is none."""
    if not path.exists():
        return ""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
