"""Attempts on disk: one JSON line an attempt, appended and flushed as it finishes.

Invariant: a file that is open for appending holds at most one row a (task, attempt) key, all of one
policy, and no error rows older than the opening. So killing a campaign loses the attempts in flight and
nothing else, and running it again runs exactly the keys that are missing or ended in an error.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType

import msgspec

from rollout_engine.errors import ConfigurationError
from rollout_engine.evaluation.model_usage import ModelUsage

Key = tuple[str, int]
"""(task id, attempt index from 0)."""


class PolicyStamp(msgspec.Struct, frozen=True):
    """Which policy an attempt measured."""

    label: str
    """What people call it: base, trained, step-20."""
    version: int | None = None
    """Policy version that the actor served; None when no episode ended."""
    digest: str = ""
    """:func:`weights_digest` of the model folder; empty when none was named."""


class AttemptError(msgspec.Struct, frozen=True):
    """A system error: it says nothing about the policy."""

    kind: str
    message: str


class AttemptRow(msgspec.Struct, frozen=True):
    """One attempt at one task: a reward, or the system error that prevented one (rule 2)."""

    task: str
    domain: str
    family: str
    attempt: int
    policy: PolicyStamp
    reward: float | None = None
    finish: str | None = None
    sampled_tokens: int = 0
    prompt_tokens: int = 0
    """Tokens sent to the actor, summed over the episode's requests."""
    seconds: float = 0.0
    seed: int = 0
    reasons: tuple[str, ...] = ()
    ranking: str = ""
    """Whose ranking the task's knowledge search had; empty where it had none."""
    models: dict[str, ModelUsage] = {}
    """What the simulated user's and the judge's models used, by role."""
    error: AttemptError | None = None

    def __post_init__(self) -> None:
        if (self.reward is None) == (self.error is None):
            raise ValueError("an attempt has either a reward or an error")

    @property
    def key(self) -> Key:
        return self.task, self.attempt

    @property
    def passed(self) -> bool:
        """The whole task: a partial reward is not a pass."""
        return self.reward is not None and self.reward >= 1.0


def read_rows(path: Path) -> list[AttemptRow]:
    """Rows of ``path`` in file order; none when there is no file.

    A last line without its newline is what a kill leaves, and is dropped. Raises
    :class:`ConfigurationError` naming file and line for anything else that isn't a row.
    """
    if not path.exists():
        return []
    *lines, _unfinished = path.read_bytes().split(b"\n")
    decoder = msgspec.json.Decoder(AttemptRow)
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(decoder.decode(line))
        except msgspec.MsgspecError as error:
            raise ConfigurationError(
                f"{path}, line {number} is not an attempt: {error}. "
                "Restore the file, or delete that line to run its attempt again"
            ) from error
    return rows


def duplicates(rows: Iterable[AttemptRow]) -> list[Key]:
    """Keys that more than one row has, sorted."""
    return sorted(key for key, count in Counter(row.key for row in rows).items() if count > 1)


def weights_digest(folder: Path) -> str:
    """16 hex digits that identify a model folder's weights: a sha256 over each safetensors file's own.

    Raises :class:`ConfigurationError` when the folder has none.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ConfigurationError(f"{folder} holds no *.safetensors file: name the folder of the served weights")
    whole = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            whole.update(f"{file.name} {hashlib.file_digest(stream, 'sha256').hexdigest()}\n".encode())
    return whole.hexdigest()[:16]


def good_rows(path: Path, policy: PolicyStamp) -> list[AttemptRow]:
    """Graded rows of ``path``, which a campaign of ``policy`` needn't run again.

    Raises :class:`ConfigurationError` on a corrupt file, on duplicate keys, and on rows of another policy.
    """
    rows = read_rows(path)
    if twice := duplicates(rows):
        task, attempt = twice[0]
        raise ConfigurationError(
            f"{path} has {len(twice)} attempts more than once, the first {task} attempt {attempt}: "
            "were two campaigns writing to it? Delete it to start over"
        )
    for row in rows:
        if not _same(row.policy, policy):
            raise ConfigurationError(
                f"{path} holds attempts of {_describe(row.policy)}, not of {_describe(policy)}: "
                "give this policy another file with --out, or delete that one"
            )
    return [row for row in rows if row.error is None]


class AttemptFile:
    """A campaign's rows, continued.

    Opening reads what is there, and leaves out error rows and an unfinished last line, atomically; it raises
    what :func:`good_rows` raises.
    """

    def __init__(self, path: Path, policy: PolicyStamp):
        self.rows = good_rows(path, policy)
        """Graded rows, those of this opening included."""
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, self.rows)
        self._stream = path.open("ab")

    @property
    def done(self) -> set[Key]:
        """Keys that need no run."""
        return {row.key for row in self.rows}

    def append(self, row: AttemptRow) -> None:
        self._stream.write(msgspec.json.encode(row) + b"\n")
        self._stream.flush()
        if row.error is None:
            self.rows.append(row)

    def __enter__(self) -> AttemptFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self._stream.close()


def _same(found: PolicyStamp, wanted: PolicyStamp) -> bool:
    """Whether both can be one policy; what either doesn't say can't contradict."""
    versions = found.version in (None, wanted.version) or wanted.version is None
    digests = found.digest in ("", wanted.digest) or not wanted.digest
    return found.label == wanted.label and versions and digests


def _describe(policy: PolicyStamp) -> str:
    return f"policy {policy.label!r} (version {policy.version}, weights {policy.digest or 'not named'})"


def _replace(path: Path, rows: Sequence[AttemptRow]) -> None:
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as stream:
        for row in rows:
            stream.write(msgspec.json.encode(row) + b"\n")
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(path)
