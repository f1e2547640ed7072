"""The domains by name, and the tasks of a run.

Invariant: every task handed out has passed rule 5 and the split check; the same arguments give the same
tasks in every process.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from rollout_engine.environments.catalogue import DOMAINS, domain
from rollout_engine.environments.rules import check_split, check_task
from rollout_engine.environments.task import Split, Task, from_data
from rollout_engine.errors import ConfigurationError

__all__ = ["DOMAINS", "domain", "find_task", "generate", "load_tasks", "read_tasks"]

SEEDS_A_RUN = 100_000
"""Task seeds of run seed s begin at s times this, so that runs with different seeds share no task."""


def generate(domains: Sequence[str], split: Split, count: int, seed: int = 0) -> list[Task]:
    """``count`` unchecked tasks, families in turn over all domains."""
    if not domains or count < 1:
        raise ConfigurationError("a task pool needs at least one domain and a count of at least 1")
    if seed < 0:
        raise ConfigurationError(f"the seed is {seed}: tasks are numbered from 0, so use a seed of at least 0")
    families = [(name, family) for name in domains for family in domain(name).families]
    return [
        family.task(name, split, seed * SEEDS_A_RUN + index // len(families))
        for index in range(count)
        for name, family in [families[index % len(families)]]
    ]


def load_tasks(domains: Sequence[str], split: Split, count: int, seed: int = 0) -> list[Task]:
    """``count`` tasks spread evenly over the domains' families, checked.

    Raises :class:`ConfigurationError` naming the first task that breaks rule 5 or the split.
    """
    return list(_load(tuple(domains), split, count, seed))


def find_task(id: str) -> Task:
    """The generated task of that id, unchecked; raises :class:`ConfigurationError` when there is none."""
    match id.split("/"):
        case [name, family_name, ("train" | "heldout") as split, seed] if seed.isdecimal():
            for family in domain(name).families:
                if family.name == family_name:
                    return family.task(name, split, int(seed))
            known = ", ".join(family.name for family in domain(name).families)
            raise ConfigurationError(f"no family {family_name!r} in domain {name}; known: {known}")
    raise ConfigurationError(f"{id!r} is no task id: DOMAIN/FAMILY/train|heldout/SEED, as bin/tasks list prints them")


def read_tasks(path: str | Path) -> list[Task]:
    """The tasks of a JSON file, unchecked: an array of objects as ``bin/tasks export`` writes them.

    Raises :class:`ConfigurationError` naming the file and the fault.
    """
    try:
        data = json.loads(Path(path).read_text("utf-8"))
        json.dumps(data, ensure_ascii=False).encode()  # a JSON escape can write half of a surrogate pair
    except OSError as error:
        raise ConfigurationError(f"cannot read tasks {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is not JSON: {error}") from error
    if not isinstance(data, list) or not data:
        raise ConfigurationError(f"{path}: a task file is a JSON array of at least one task")
    return [from_data(entry) for entry in data]


@lru_cache(maxsize=16)
def _load(domains: tuple[str, ...], split: Split, count: int, seed: int) -> tuple[Task, ...]:
    tasks = generate(domains, split, count, seed)
    check_split(tasks)
    for task in tasks:
        check_task(domain(task.domain), task)
    return tuple(tasks)
