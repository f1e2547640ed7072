"""Which tasks a campaign runs, and how often, by the words of the command line.

Invariant: the same words name the same tasks to the campaign and to its report.
"""

from __future__ import annotations

from pathlib import Path

from protocol.config import Config
from rollout_engine.curation.candidates import heldout_tasks, training_candidates
from rollout_engine.curation.pool import read_pool
from rollout_engine.environments.task import Task
from rollout_engine.errors import ConfigurationError


def checked_repeat(config: Config, repeat: int | None) -> int:
    """Attempts a task; raises :class:`ConfigurationError` for less than one."""
    attempts = config.evaluation.repeat if repeat is None else repeat
    if attempts < 1:
        raise ConfigurationError(f"--repeat is {attempts}: a task is attempted at least once")
    return attempts


def evaluated_tasks(config: Config, which: str) -> list[Task]:
    """Tasks that ``--tasks`` names: ``heldout``, ``train``, or those of a file.

    Raises :class:`ConfigurationError` for a file that can't be read, is empty or names an unknown task.
    """
    if which == "heldout":
        return heldout_tasks(config)
    if which == "train":
        return training_candidates(config)
    path = Path(which)
    if not path.is_file():
        raise ConfigurationError(f"--tasks is {which!r}: use heldout, train, or a file of task ids")
    ids = read_pool(path).tasks if path.suffix == ".json" else path.read_text().split()
    by_id = {task.id: task for task in [*training_candidates(config), *heldout_tasks(config)]}
    if not ids:
        raise ConfigurationError(f"{path} names no task")
    if unknown := [id for id in ids if id not in by_id]:
        raise ConfigurationError(
            f"{path} names {unknown[0]}, which this configuration doesn't generate: check tasks.* and seed"
        )
    return [by_id[id] for id in dict.fromkeys(ids)]
