"""Logs on disk: a run's records as JSON lines, readable with any JSON tool, in which no byte can change unseen.

    {"kind":"log","sha256":"…","record":{"format":1,"run":"quickstart"}}
    {"kind":"trajectory","sha256":"…","record":{…}}
    {"kind":"batch","sha256":"…","record":{…}}
    {"kind":"end","sha256":"…","record":{"records":2}}

Invariant: a file is read whole or refused, naming its line. ``sha256`` is of the line before's ``sha256`` (64
zeros at first), the kind, a newline and the record's bytes, so a changed, lost, doubled or moved line breaks the
chain where it happens, and a file without its last line was cut off.

Token arrays are always in place here: a file needs no object store.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from protocol.records import Batch, Origin, PolicyVersion, Trajectory, TrajectoryId, encode

if TYPE_CHECKING:
    from protocol.bus import Bus

FORMAT = 1

Record = Trajectory | Batch | PolicyVersion | Origin

_LINE = re.compile(rb'\{"kind":"([a-z]+)","sha256":"([0-9a-f]{64})","record":(\{.*\})\}\n')
_START = "0" * 64
_AGAIN = "export the run again (bin/trajectories export)"


class LogError(Exception):
    """A log that can't be trusted or used. The message names the file, the line and what to do."""


class Head(msgspec.Struct, frozen=True):
    """First line of a file."""

    format: int
    run: str


class End(msgspec.Struct, frozen=True):
    """Last line of a file."""

    records: int


_KINDS: dict[str, type] = {
    "log": Head,
    "trajectory": Trajectory,
    "batch": Batch,
    "policy": PolicyVersion,
    "origin": Origin,
    "end": End,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


@dataclass(frozen=True)
class Log:
    """What a set of files holds of one run."""

    run: str
    batches: dict[int, Batch] = field(default_factory=dict)
    """By step, ascending."""
    trajectories: dict[TrajectoryId, Trajectory] = field(default_factory=dict)
    policies: dict[int, PolicyVersion] = field(default_factory=dict)
    """By version, ascending."""
    origin: Origin | None = None
    """Where the run was forked from."""


class LogWriter:
    """Writes one file: ``with LogWriter(path, run) as log: log.write(record)``.

    The file appears under its name, complete, on leaving; a failure inside leaves no file.
    """

    def __init__(self, path: Path, run: str):
        self._path = path
        self._partial = path.with_name(path.name + ".partial")
        self._run = run
        self._digest = _START
        self._records = 0
        self._file: BinaryIO

    def __enter__(self) -> LogWriter:
        self._partial.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._partial.open("wb")
        self._append(Head(FORMAT, self._run))
        return self

    def write(self, record: Record) -> None:
        self._append(record)
        self._records += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._file as file:
            if error is None:
                self._append(End(self._records))
                file.flush()
                os.fsync(file.fileno())
        if error is None:
            os.replace(self._partial, self._path)
        else:
            self._partial.unlink()

    def _append(self, record: Record | Head | End) -> None:
        kind, data = _NAMES[type(record)], encode(record)
        self._digest = _chain(self._digest, kind, data)
        self._file.write(b'{"kind":"%s","sha256":"%s","record":%s}\n' % (kind.encode(), self._digest.encode(), data))


def scan(path: str | Path) -> Iterator[tuple[int, Head | Record]]:
    """The lines of one file, as (line number, record), the :class:`Head` first, checking the chain on the way.

    Raises :class:`LogError` naming file and line. Holds one line in memory.
    """
    path = Path(path)
    digest, records, ended, number = _START, 0, False, 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if ended:
                    raise LogError(f"{path}:{number}: more lines after the end of the log; {_AGAIN}")
                match = _LINE.fullmatch(line)
                if match is None:
                    fault = "is not a line of a log" if line.endswith(b"\n") else "is cut off"
                    raise LogError(f"{path}:{number}: {fault}; {_AGAIN}")
                kind, stated, data = match[1].decode(), match[2].decode(), match[3]
                digest = _chain(digest, kind, data)
                if digest != stated:
                    raise LogError(f"{path}:{number}: damaged, or a line before it is missing; {_AGAIN}")
                record = _decode(path, number, kind, data)
                if (number == 1) != isinstance(record, Head):
                    raise LogError(f"{path}:{number}: the head must be the first line, and only that; {_AGAIN}")
                if isinstance(record, End):
                    ended = record.records == records
                    if not ended:
                        raise LogError(f"{path}:{number}: {record.records} records stated, {records} found; {_AGAIN}")
                    continue
                records += number > 1
                yield number, record
    except OSError as error:
        raise LogError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    if not ended:
        raise LogError(f"{path}:{number + 1}: the end of the log is missing, so lines were cut off; {_AGAIN}")


def files(paths: Iterable[str | Path]) -> list[Path]:
    """Log files among ``paths``, a folder standing for its ``*.jsonl``; :class:`LogError` when there are none."""
    paths = [Path(path) for path in paths]
    found = [file for path in paths for file in (sorted(path.glob("*.jsonl")) if path.is_dir() else [path])]
    if not found:
        raise LogError(f"no log files in {', '.join(map(str, paths)) or 'an empty list'}; give files or their folder")
    return found


def read(paths: Iterable[str | Path]) -> Log:
    """Everything that these files (or folders of files) hold of one run.

    Raises :class:`LogError` when a file is damaged, when files are of different runs or contradict each other,
    and when a batch names a trajectory that none of them holds.
    """
    gathered = _Gathered()
    for path in files(paths):
        for number, record in scan(path):
            gathered.add(path, number, record)
    gathered.check_batches()
    return gathered.log()


@dataclass(frozen=True)
class Summary:
    """What one verified file holds: records by kind."""

    path: Path
    counts: dict[str, int]


def verify(paths: Iterable[str | Path]) -> list[Summary]:
    """Check what :func:`read` checks, without holding token arrays; raises :class:`LogError` at the first fault."""
    gathered, out = _Gathered(), []
    for path in files(paths):
        counts = dict.fromkeys(("trajectory", "batch", "policy", "origin"), 0)
        for number, record in scan(path):
            if isinstance(record, Trajectory):
                record = msgspec.structs.replace(record, tokens=None)
            gathered.add(path, number, record)
            if not isinstance(record, Head):
                counts[_NAMES[type(record)]] += 1
        out.append(Summary(path, counts))
    gathered.check_batches()
    return out


async def export(bus: Bus, folder: str | Path, first: int | None = None, last: int | None = None) -> list[Path]:
    """Write steps ``first`` to ``last`` of a run (all without bounds) to ``folder``, and return the files.

    One file a step (``step-000012.jsonl``: its trajectories and those of other steps that its batch names, then its
    batch) and ``policies.jsonl``. Holds one step in memory. Without ``first``, a log that retention has cut short is
    exported from where it begins; raises :class:`LogError` when ``first`` lies before that.
    """
    folder = Path(folder)
    horizon = await bus.horizon()
    if first is not None and first < horizon:
        raise LogError(
            f"run {bus.run}: the trajectories of steps {first} to {horizon - 1} were removed, as nats.retain: "
            f"checkpoint says: export from step {horizon} on (--first {horizon})"
        )
    written = []
    # A step that trained on nothing but what earlier ones left over has a manifest and no trajectory of its own.
    for step in sorted({*await bus.steps(), *await bus.batch_steps()}):
        if step < max(horizon, first or 0) or (last is not None and step > last):
            continue
        path = folder / f"step-{step:06}.jsonl"
        with LogWriter(path, bus.run) as log:
            # Before the trajectories: a step may end meanwhile, and what its batch names must be among them.
            batch = await bus.batch(step)
            for trajectory in await bus.trajectories(step):
                log.write(trajectory)
            named = {id for group in batch.groups for id in group.trajectories} if batch else set()
            # The manifest of a step that trained on what retention has removed stays behind: nobody can replay it.
            if batch is not None and all(id.step >= horizon for id in named):
                for trajectory in await bus.fetch(sorted(id for id in named if id.step != step)):
                    log.write(trajectory)
                log.write(batch)
        written.append(path)
    path = folder / "policies.jsonl"
    with LogWriter(path, bus.run) as log:
        if (origin := await bus.origin()) is not None:
            log.write(origin)
        for version in await bus.policies():
            log.write(version)
    return [*written, path]


class _Gathered:
    """Records of several files, put together where they agree."""

    def __init__(self) -> None:
        self._run: str | None = None
        self._first: Path | None = None
        self._batches: dict[int, tuple[Batch, str]] = {}
        self._trajectories: dict[TrajectoryId, Trajectory] = {}
        self._policies: dict[int, PolicyVersion] = {}
        self._origin: Origin | None = None

    def add(self, path: Path, number: int, record: Head | Record) -> None:
        where = f"{path}:{number}"
        run = record.id.run if isinstance(record, Trajectory) else record.run
        if self._run is None:
            self._run, self._first = run, path
        if run != self._run:
            raise LogError(
                f"{where}: of run {run!r}, but {self._first} is of run {self._run!r}; read one run at a time"
            )
        match record:
            case Trajectory():
                self._agree(where, str(record.id), self._trajectories.setdefault(record.id, record), record)
            case Batch():
                kept, _ = self._batches.setdefault(record.step, (record, where))
                self._agree(where, f"the batch of step {record.step}", kept, record)
            case PolicyVersion():
                kept = self._policies.setdefault(record.version, record)
                self._agree(where, f"policy version {record.version}", kept, record)
            case Origin():
                self._origin = self._origin or record
                self._agree(where, "the origin of the fork", self._origin, record)

    def _agree(self, where: str, what: str, kept: Record, record: Record) -> None:
        if kept != record:
            raise LogError(f"{where}: {what} differs from the same record read before; leave one of the files out")

    def check_batches(self) -> None:
        for batch, where in self._batches.values():
            for group in batch.groups:
                for id in group.trajectories:
                    if id not in self._trajectories:
                        raise LogError(f"{where}: the batch names trajectory {id}, which no file holds; {_AGAIN}")

    def log(self) -> Log:
        assert self._run is not None
        batches = {step: batch for step, (batch, _) in sorted(self._batches.items())}
        return Log(self._run, batches, self._trajectories, dict(sorted(self._policies.items())), self._origin)


def _chain(before: str, kind: str, data: bytes) -> str:
    return hashlib.sha256(b"%s%s\n%s" % (before.encode(), kind.encode(), data)).hexdigest()


def _decode(path: Path, number: int, kind: str, data: bytes) -> Head | Record | End:
    try:
        record = msgspec.json.decode(data, type=_KINDS[kind])
    except KeyError:
        raise LogError(
            f"{path}:{number}: unknown kind of record {kind!r}; read it with the version that wrote it"
        ) from None
    except msgspec.ValidationError as error:
        raise LogError(f"{path}:{number}: not a {kind} of this version ({error}); {_AGAIN}") from error
    if isinstance(record, Head) and record.format != FORMAT:
        raise LogError(f"{path}:{number}: format {record.format}, this version reads {FORMAT}; {_AGAIN}")
    return record
