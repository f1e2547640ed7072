"""Whole trajectories of a campaign, beside its attempts, and the few failures worth reading.

Invariant: a row of the attempts file has its transcript here, because that is written first; of two lines
of one key the later counts. Which failures are shown depends on the data alone.
"""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from protocol.records import Trajectory
from rollout_engine.errors import ConfigurationError
from rollout_engine.evaluation.attempts import AttemptRow, Key


class Transcript(msgspec.Struct, frozen=True):
    """One line of a transcripts file: an attempt's key and its whole trajectory."""

    task: str
    attempt: int
    trajectory: Trajectory


def open_transcripts(path: Path) -> BinaryIO:
    """Open for appending, less the unfinished last line that a kill leaves."""
    stream = path.open("a+b")
    if size := stream.tell():
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            whole = content.rfind(b"\n") + 1
        if whole < size:
            stream.truncate(whole)
    return stream


def write_transcript(stream: BinaryIO, key: Key, trajectory: Trajectory) -> None:
    stream.write(msgspec.json.encode(Transcript(*key, trajectory)) + b"\n")
    stream.flush()


def choose_failures(rows: Sequence[AttemptRow], fallen: Collection[str], limit: int = 4) -> list[Key]:
    """Keys of up to ``limit`` failed attempts, at most one a family: families in ``fallen`` (DOMAIN/FAMILY)
    first, then those that fail most."""
    failed = [row for row in rows if row.error is None and not row.passed]
    weight = Counter(_scope(row) for row in failed)
    families = sorted(weight, key=lambda scope: (scope not in fallen, -weight[scope], scope))
    first = {}
    for row in sorted(failed, key=lambda row: row.key):
        first.setdefault(_scope(row), row.key)
    return [first[scope] for scope in families[:limit]]


def read_transcripts(path: Path, keys: Iterable[Key]) -> list[Transcript]:
    """Transcripts of ``keys`` in that order, without those that the file doesn't hold.

    Raises :class:`ConfigurationError` naming file and line for a line that is not a transcript.
    """
    wanted = list(keys)
    found: dict[Key, Transcript] = {}
    if path.exists():
        with path.open("rb") as stream:
            for number, line in enumerate(stream, 1):
                if not line.endswith(b"\n"):
                    break
                try:
                    transcript = msgspec.json.decode(line, type=Transcript)
                except msgspec.MsgspecError as error:
                    raise ConfigurationError(f"{path}, line {number} is not a transcript: {error}") from error
                if (transcript.task, transcript.attempt) in wanted:
                    found[transcript.task, transcript.attempt] = transcript
    return [found[key] for key in wanted if key in found]


def _scope(row: AttemptRow) -> str:
    return f"{row.domain}/{row.family}"
