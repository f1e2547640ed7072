"""Policy versions on disk: what the learner hands to the actors.

Invariant: a version's folder appears whole or not at all (it is written beside its place and renamed), and what is
announced is what was written: the digests are of the bytes on disk and the probe is computed with the weights as
rounded to the pushed dtype. A full version is a complete Hugging Face model folder. A delta holds what changed since
the version before; every version that it needs is kept as long as it is. An adapter goes onto version 0, which always
is.

Each process writes one file, of the tensors that are dealt to it, and all write at once; the first one puts the folder
in its place when every file is durable.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import jax
import msgspec
import numpy as np

from learner.models.family import ModelConfig
from learner.models.huggingface import carried_tensors, export_pieces, export_specs, export_tensors, read_config
from learner.models.tensor_files import TensorSpec, file_header, file_pieces, tensor_bytes
from learner.processes import first, gathered
from learner.push.files import Changes, DigestAlone, Sink, WholeFile
from learner.push.relay import host_tensors, owner, writers_of
from protocol import delta
from protocol.config import ConfigError
from protocol.records import PolicyVersion, Probe
from protocol.versions import folder_name, read_record, write_record

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
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

    def tensors() -> Iterator[np.ndarray]:
        yield from (tensor for _, tensor in export_tensors(config, params, dtype))
        yield from carried.values()

    digest = hashlib.sha256()
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(beside, "wb") as stream:
            for piece in file_pieces(specs, tensors()):
                digest.update(piece)
                stream.write(piece)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    return digest.hexdigest()


class AdapterPush(NamedTuple):
    """What is pushed where adapters are trained: from version 1 on, an adapter onto version 0."""

    base: dict
    """The parameters of version 0."""
    write: Callable[[Path], dict[str, str]]
    """Writes the adapter's files durably into a folder; returns the sha256 of each by name."""


class _Last(NamedTuple):
    """The last version written, as far as this process wrote it: what the next one's changes are told from."""

    version: int
    files: dict[int, np.ndarray]
    """Bytes of the complete file, by writer."""


class WeightStore:
    """The folder ``runs/RUN/weights``: one subfolder a version, ``v000012``."""

    def __init__(
        self, folder: Path, base: Path, dtype: str, keep: int, full_every: int = 1, writers: int | None = None
    ):
        """``base``: the model folder whose tokenizer and configuration go with every version. ``full_every``: versions
        that it divides are full, and the others deltas, for which each process keeps the bytes of its file in memory.
        ``writers``: files of a full version; default: one a process."""
        self.folder, self.base, self.dtype, self.keep = folder, base, dtype, keep
        self.full_every, self.writers = full_every, writers
        if not (base / "config.json").exists():
            raise ConfigError(f"model.folder {base} has no config.json; it must name a Hugging Face model folder")
        self.model = read_config(base)
        self._last: _Last | None = None
        folder.mkdir(parents=True, exist_ok=True)

    def write(
        self, run: str, version: int, params, probe: Probe, final: bool = False, adapter: AdapterPush | None = None
    ) -> PolicyVersion:
        """Write ``params`` as ``version``, prune old versions, and return the announcement. All processes call it.

        Writing a version again (after a restart) replaces it, unless it is there with the same weights. With an
        ``adapter``, ``params`` are what it makes of version 0: they are written of that version alone, and of others
        only their digests are told, for those who merge them.
        """
        adapter = adapter if version else None
        if adapter and not gathered(np.array([(self.folder / folder_name(0)).exists()])).all():
            self.write(run, 0, adapter.base, probe)
        place = self.folder / folder_name(version)
        last = self._last
        # Every process comes to the same, for they restart together.
        onto = (
            last.version if last and last.version == version - 1 and version % self.full_every and not final else None
        )
        number = int(gathered(np.array([os.getpid()]))[0, 0])
        beside = self.folder / f".{place.name}.{number}.part"
        if onto is None:
            self._last = None  # Its memory is for this version's bytes.
        try:
            if first():
                shutil.rmtree(beside, ignore_errors=True)
                beside.mkdir()
            gathered(np.zeros(1))
            with ExitStack() as stack:
                sinks = self._write_files(beside, params, onto, stack, adapter is not None)
                record = self._record(sinks, PolicyVersion(run, version, str(place.resolve()), {}, probe, final), onto)
                if first():
                    if adapter:
                        files = adapter.write(beside)
                        record = msgspec.structs.replace(
                            record, form="adapter", onto=0, sha256=files, whole=record.sha256
                        )
                    record = self._put(place, beside, record)
                if self.full_every > 1 and not adapter:
                    self._last = _Last(version, {writer: sink.kept() for writer, sink in sinks.items()})
        finally:
            if first():
                shutil.rmtree(beside, ignore_errors=True)
        if first():
            self.prune(version)
        return record

    def prune(self, newest: int) -> None:
        """Remove all but version 0, the last ``keep`` versions up to ``newest``, and those that they go onto; and
        leavings of killed runs."""
        places = {int(m[1]): e for e in self.folder.iterdir() if (m := re.fullmatch(r"v(\d{6,})", e.name))}
        kept = {version for version in places if version == 0 or version > newest - self.keep}
        for version in sorted(kept):
            while version in places and (record := read_record(places[version])) and record.onto is not None:
                version = record.onto
                kept.add(version)
        for version in places.keys() - kept:
            with self._out_of_the_way(places[version]):
                pass
        for entry in self.folder.iterdir():
            if re.fullmatch(r"\.v\d+\.\d+\.(part|old)", entry.name):
                shutil.rmtree(entry)

    def _write_files(
        self, folder: Path, params, onto: int | None, stack: ExitStack, digests: bool = False
    ) -> dict[int, Sink]:
        """Write this process's files; returns them by writer, finished. ``digests``: those alone, and no file."""
        leaf = jax.tree.leaves(params)[0]
        writers = self.writers or writers_of(leaf)
        carried = carried_tensors(self.model, self.base)
        specs: list[dict[str, TensorSpec]] = [{} for _ in range(writers)]
        for number, (name, spec) in enumerate(export_specs(self.model, self.dtype).items()):
            specs[number % writers][name] = spec
        own = [writer for writer in range(writers) if owner(leaf, writer, writers) == jax.process_index()]
        # What is carried has no place on the devices: it is the first writer's.
        specs[0] |= {name: TensorSpec(x.shape, x.dtype) for name, x in carried.items()}
        if first() and onto is None and not digests:
            self._write_companions(folder, specs)
        sinks: dict[int, Sink] = {}
        for writer in own:
            header = file_header(specs[writer])
            size = len(header) + sum(spec.nbytes for spec in specs[writer].values())
            name = file_name(writer, writers)
            if digests:
                sink = DigestAlone(name)
            elif onto is None:
                sink = WholeFile(folder, name, size, keep=self.full_every > 1)
            else:
                sink = Changes(folder, name, self._last.files[writer])
            sinks[writer] = stack.enter_context(closing(sink))
            sink.take(header)
        named = {writer: iter(specs[writer].items()) for writer in own}
        for writer, tensor in host_tensors(export_pieces(self.model, params, writers), self.dtype, writers):
            sinks[writer].take(tensor_bytes(*next(named[writer]), tensor))
        if 0 in own:
            for tensor in carried.values():
                sinks[0].take(tensor_bytes(*next(named[0]), tensor))
        for sink in sinks.values():
            sink.finish()
        return sinks

    def _write_companions(self, folder: Path, specs: list[dict[str, TensorSpec]]) -> None:
        for name in COMPANIONS:
            if (self.base / name).exists():
                shutil.copyfile(self.base / name, folder / name)
        if len(specs) > 1:
            names = {name: file_name(writer, len(specs)) for writer, own in enumerate(specs) for name in own}
            size = sum(spec.nbytes for own in specs for spec in own.values())
            index = {"metadata": {"total_size": size}, "weight_map": names}
            (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True))

    def _record(self, sinks: dict[int, Sink], version: PolicyVersion, onto: int | None) -> PolicyVersion:
        """``version`` with the digests of every process's files; a collective, after which all files are durable."""
        writers = int(gathered(np.array([len(sinks)])).sum())
        own = np.zeros((writers, 2, 32))
        for writer, sink in sinks.items():
            own[writer] = [list(bytes.fromhex(sink.complete)), list(bytes.fromhex(sink.written))]
        digests = gathered(own.reshape(-1)).sum(axis=0).reshape(own.shape).astype(np.uint8)
        names = [file_name(writer, writers) for writer in range(writers)]
        complete, written = ([bytes(digest).hex() for digest in digests[:, i]] for i in range(2))
        if onto is None:
            return msgspec.structs.replace(version, sha256=dict(zip(names, complete, strict=True)))
        return msgspec.structs.replace(
            version,
            form="delta",
            onto=onto,
            sha256=dict(zip((name + delta.SUFFIX for name in names), written, strict=True)),
            whole=dict(zip(names, complete, strict=True)),
        )

    def _put(self, place: Path, beside: Path, record: PolicyVersion) -> PolicyVersion:
        """Put what was written in its place, unless the same weights are there, which actors may have been told of."""
        there = read_record(place)
        if there is not None and there.complete == record.complete and _intact(place, there):
            return msgspec.structs.replace(
                record, form=there.form, onto=there.onto, sha256=there.sha256, whole=there.whole
            )
        write_record(beside, record)
        with self._out_of_the_way(place):
            beside.rename(place)
        return record

    @contextmanager
    def _out_of_the_way(self, place: Path) -> Iterator[None]:
        """Rename a version that is there, and remove it at the end: half a folder never goes by a version's name."""
        aside = self.folder / f".{place.name}.{os.getpid()}.old"
        shutil.rmtree(aside, ignore_errors=True)
        if place.exists():
            place.rename(aside)
        yield
        shutil.rmtree(aside, ignore_errors=True)


def file_name(writer: int, writers: int) -> str:
    """Of a full version's file."""
    return WEIGHTS if writers == 1 else f"model-{writer + 1:05d}-of-{writers:05d}.safetensors"


def file_digest(path: Path) -> str:
    """sha256 of a file, or "" when there is none."""
    if not path.exists():
        return ""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _intact(place: Path, record: PolicyVersion) -> bool:
    return all(file_digest(place / name) == digest for name, digest in record.sha256.items())
