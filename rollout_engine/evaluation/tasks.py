"""Which tasks a campaign runs, and how often, by the words of the command line.

Invariant: the same words name the same tasks to the campaign and to its report.
"""

from __future__ import annotations

from pathlib import Path

from protocol.config import Config
from rollout_engine.curation.candidates import heldout_tasks, training_candidates
from rollout_engine.curation.pool import read_pool
from rollout_engine.environments.environment import AnyTask
from rollout_engine.environments.registry import domain, find_task, read_tasks
from rollout_engine.environments.rules import check_task, check_unique
from rollout_engine.environments.task import Task
from rollout_engine.environments.thinkingbox.places import find_thinkingbox_tasks
from rollout_engine.environments.thinkingbox.task import PREFIX
from rollout_engine.errors import ConfigurationError


def checked_repeat(config: Config, repeat: int | None) -> int:
    """Attempts a task; raises :class:`ConfigurationError` for less than one."""
    attempts = config.evaluation.repeat if repeat is None else repeat
    if attempts < 1:
        raise ConfigurationError(f"--repeat is {attempts}: a task is attempted at least once")
    return attempts


def evaluated_tasks(config: Config, which: str) -> list[AnyTask]:
    """Tasks that ``--tasks`` names: ``heldout``, ``train``, or those of a file.

    A file is a pool, an array of tasks as ``bin/tasks export`` writes it, or text with one id a line.
    Raises :class:`ConfigurationError` for a file that can't be used, or names a task that can't.
    """
    if which == "heldout":
        chosen = heldout_tasks(config)
        if not chosen:
            raise ConfigurationError(
                "--tasks heldout: there is none: tasks.domains is empty, and so is tasks.thinkingbox.heldout"
            )
        return chosen
    if which == "train":
        return training_candidates(config)
    path = Path(which)
    if not path.is_file():
        raise ConfigurationError(f"--tasks is {which!r}: use heldout, train, or a file")
    try:
        tasks = {task.id: task for task in _from_file(config, path)}
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"--tasks {path} is not UTF-8 text: {error.reason}") from error
    if not tasks:
        raise ConfigurationError(f"--tasks {path} names no task")
    for task in tasks.values():
        if isinstance(task, Task):
            check_task(domain(task.domain), task)
    return list(tasks.values())


def _from_file(config: Config, path: Path) -> list[AnyTask]:
    if path.suffix != ".json":
        return _named(config, path.read_text("utf-8").split())
    if path.read_text("utf-8").lstrip().startswith("["):
        tasks = read_tasks(path)
        check_unique(tasks)
        return tasks
    return _named(config, read_pool(path).tasks)


def _named(config: Config, ids: list[str]) -> list[AnyTask]:
    """The tasks of those ids, in their order."""
    theirs = [id for id in ids if id.startswith(PREFIX)]
    found = {task.id: task for task in find_thinkingbox_tasks(config, theirs)} if theirs else {}
    return [found.get(id) or find_task(id) for id in ids]
