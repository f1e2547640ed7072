"""The domains by name, and the tasks of a run.

Invariant: every task handed out has passed rule 5 and the split check; the same arguments give the same
tasks in every process.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from rollout_engine.environments.catalogue import DOMAINS, domain
from rollout_engine.environments.rules import check_split, check_task
from rollout_engine.environments.task import Split, Task
from rollout_engine.errors import ConfigurationError

__all__ = ["DOMAINS", "domain", "generate", "load_tasks"]

SEEDS_A_RUN = 100_000
"""Task seeds of run seed s begin at s times this, so that runs with different seeds share no task."""


def generate(domains: Sequence[str], split: Split, count: int, seed: int = 0) -> list[Task]:
    """``count`` unchecked tasks, families in turn over all domains."""
    if not domains or count < 1:
        raise ConfigurationError("a task pool needs at least one domain and a count of at least 1")
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


@lru_cache(maxsize=16)
def _load(domains: tuple[str, ...], split: Split, count: int, seed: int) -> tuple[Task, ...]:
    tasks = generate(domains, split, count, seed)
    check_split(tasks)
    for task in tasks:
        check_task(domain(task.domain), task)
    return tuple(tasks)
