"""Held-out scores of policy versions, in the run's folder: ``bin/evaluate`` writes them, the learner's retention
reads them.

Invariant: a score is there whole or not at all, one a version, of a finished campaign over all held-out tasks; and
scores of different tasks are never compared.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from protocol.config import ConfigError


class Score(msgspec.Struct, frozen=True):
    """What a policy version came to on the held-out tasks."""

    version: int
    pass_at_1: float
    """Mean over tasks of the share of attempts that passed."""
    attempts: int
    """A task."""
    tasks: str
    """:func:`tasks_digest` of the tasks."""


def tasks_digest(ids: Iterable[str]) -> str:
    """16 hex digits that identify a set of tasks."""
    return hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()[:16]


def write_score(run: Path, score: Score) -> Path:
    """Keep ``score`` in the folder of a run, in the place of an earlier one of that version."""
    path = _folder(run) / f"v{score.version:06d}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    beside.write_bytes(msgspec.json.encode(score))
    beside.replace(path)
    return path


def read_scores(run: Path) -> dict[int, float]:
    """``pass_at_1`` by version, of those that were scored on the same tasks as the newest version that was.

    Raises :class:`ConfigError` naming a file that is no score.
    """
    scores = {}
    for path in sorted(_folder(run).glob("v*.json")):
        try:
            score = msgspec.json.decode(path.read_bytes(), type=Score)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{path} is not a score: {error}. Remove it, or evaluate that version again") from error
        scores[score.version] = score
    if not scores:
        return {}
    tasks = scores[max(scores)].tasks
    return {version: score.pass_at_1 for version, score in scores.items() if score.tasks == tasks}


def _folder(run: Path) -> Path:
    return run / "evaluation" / "scores"
