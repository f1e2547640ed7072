"""Which tasks a campaign runs, and how often, by the words of the command line.

Invariant: the same words name the same tasks to the campaign and to its report.
"""

from __future__ import annotations

from pathlib import Path

from protocol.config import Config
from rollout_engine.curation.candidates import heldout_tasks, training_candidates
from rollout_engine.curation.pool import read_pool
from rollout_engine.environments.registry import domain, find_task, read_tasks
from rollout_engine.environments.rules import check_task, check_unique
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

    A file is a pool, an array of tasks as ``bin/tasks export`` writes it, or text with one id a line.
    Raises :class:`ConfigurationError` for a file that can't be used, or names a task that can't.
    """
    if which == "heldout":
        return heldout_tasks(config)
    if which == "train":
        return training_candidates(config)
    path = Path(which)
    if not path.is_file():
        raise ConfigurationError(f"--tasks is {which!r}: use heldout, train, or a file")
    try:
        tasks = {task.id: task for task in _from_file(path)}
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"--tasks {path} is not UTF-8 text: {error.reason}") from error
    if not tasks:
        raise ConfigurationError(f"--tasks {path} names no task")
    for task in tasks.values():
        check_task(domain(task.domain), task)
    return list(tasks.values())


def _from_file(path: Path) -> list[Task]:
    if path.suffix != ".json":
        return [find_task(id) for id in path.read_text("utf-8").split()]
    if path.read_text("utf-8").lstrip().startswith("["):
        tasks = read_tasks(path)
        check_unique(tasks)
        return tasks
    return [find_task(id) for id in read_pool(path).tasks]
