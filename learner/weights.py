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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import numpy as np

from learner.models.family import ModelConfig
from learner.models.huggingface import carried_tensors, export_specs, export_tensors, read_config
from learner.models.tensor_files import TensorSpec, file_pieces
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


def write_tensors(
    path: Path, config: ModelConfig, params, dtype: str, carried: Mapping[str, np.ndarray] | None = None
) -> str:
    """Write one safetensors file atomically and durably, ``carried`` tensors as they are; returns its sha256."""
    carried = carried or {}
    specs = export_specs(config, dtype) | {name: TensorSpec(x.shape, x.dtype) for name, x in carried.items()}
    tensors = chain((tensor for _, tensor in export_tensors(config, params, dtype)), carried.values())
    digest = hashlib.sha256()
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(beside, "wb") as stream:
            for piece in file_pieces(specs, tensors):
                digest.update(piece)
                stream.write(piece)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    return digest.hexdigest()


class WeightStore:
    """The folder ``runs/RUN/weights``: one subfolder a version, ``v000012``."""

    def __init__(self, folder: Path, base: Path, dtype: str, keep: int):
        """``base``: the model folder whose tokenizer and configuration go with every version."""
        self.folder, self.base, self.dtype, self.keep = folder, base, dtype, keep
        if not (base / "config.json").exists():
            raise ConfigError(f"model.folder {base} has no config.json; it must name a Hugging Face model folder")
        self.model = read_config(base)
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, run: str, version: int, params, probe: Probe, final: bool = False) -> PolicyVersion:
        """Write ``params`` as ``version``, prune old versions, and return the announcement.

        Writing a version again (after a restart) replaces it; equal weights have equal digests.
        """
        place = self.folder / f"v{version:06d}"
        beside = self.folder / f".{place.name}.{os.getpid()}.part"
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        try:
            for name in COMPANIONS:
                if (self.base / name).exists():
                    shutil.copyfile(self.base / name, beside / name)
            digest = write_tensors(
                beside / WEIGHTS, self.model, params, self.dtype, carried_tensors(self.model, self.base)
            )
            if file_digest(place / WEIGHTS) != digest:
                with self._out_of_the_way(place):
                    beside.rename(place)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
        self.prune(version)
        return PolicyVersion(run, version, str(place.resolve()), {WEIGHTS: digest}, probe, final)

    def prune(self, newest: int) -> None:
        """Remove all but version 0 and the last ``keep`` versions up to ``newest``, and leavings of killed runs."""
        for entry in self.folder.iterdir():
            match = re.fullmatch(r"v(\d{6,})", entry.name)
            if match and 0 < int(match[1]) <= newest - self.keep:
                with self._out_of_the_way(entry):
                    pass
            elif re.fullmatch(r"\.v\d+\.\d+\.(part|old)", entry.name):
                shutil.rmtree(entry)

    @contextmanager
    def _out_of_the_way(self, place: Path) -> Iterator[None]:
        """Rename a version that is there, and remove it at the end: half a folder never goes by a version's name."""
        aside = self.folder / f".{place.name}.{os.getpid()}.old"
        shutil.rmtree(aside, ignore_errors=True)
        if place.exists():
            place.rename(aside)
        yield
        shutil.rmtree(aside, ignore_errors=True)


def file_digest(path: Path) -> str:
    """sha256 of a file, or "" when there is none."""
    if not path.exists():
        return ""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
