"""Which task a group runs: a pure function of (pool, seed, step, group number) and of the log before the step.

Invariant: an engine restarted in mid-step gives every group the task that it had before. In ``fixed`` mode every task
of the pool is visited equally often by first-choice groups; in ``adaptive`` mode the exploring share of them visits
the pool evenly, so that no task waits longer than that takes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from protocol.config import TaskSampling
from rollout_engine.environments.task import Task


def task_for(pool: Sequence[Task], seed: int, step: int, group: int, groups: int) -> Task:
    """The task of ``group`` in ``fixed`` mode.

    Groups below ``groups`` walk through the pool epoch by epoch, each epoch a fresh permutation, so that
    consecutive steps share no task before the pool is through. Later groups are replacements: they follow
    a permutation of the step's own.
    """
    if group < groups:
        return _walk(pool, seed, step * groups + group)
    epoch, place = divmod(group - groups, len(pool))
    return pool[_permutation(len(pool), f"{seed}/step/{step}/{epoch}")[place]]


class Schedule:
    """The tasks of one step's groups, and the chance that each comes out mixed.

    ``chance``  of a task, by its posterior as of this step.
    """

    def __init__(
        self,
        pool: Sequence[Task],
        settings: TaskSampling,
        seed: int,
        step: int,
        groups: int,
        chance: Callable[[Task], float],
    ):
        self._pool = pool
        self._seed = seed
        self._step = step
        self._groups = groups
        self._chance = chance
        self._order: list[Task] | None = None
        if settings.mode == "adaptive":
            self._order = self._explored(settings.exploration)

    def task(self, group: int) -> Task:
        if self._order is None:
            return task_for(self._pool, self._seed, self._step, group, self._groups)
        while group >= len(self._order):
            self._order += self._drawn()
        return self._order[group]

    def chance(self, group: int) -> float:
        return self._chance(self.task(group))

    def _explored(self, share: float) -> list[Task]:
        count = min(len(self._pool), math.ceil(share * self._groups))
        first = self._step * count
        return [_walk(self._pool, self._seed, first + i) for i in range(count)]

    def _drawn(self) -> list[Task]:
        """Tasks in a random order that favours those likely to come out mixed: successive draws without replacement,
        each with odds in proportion to the chances of those left (Efraimidis and Spirakis, 2006).

        The first time the whole pool less what is explored; then, replacements being needed still, the whole pool.
        """
        taken = {task.id for task in self._order} if len(self._order) < len(self._pool) else set()
        draw = random.Random(f"{self._seed}/adaptive/{self._step}/{len(self._order)}")
        keys = {task.id: math.log(1.0 - draw.random()) / max(self._chance(task), 1e-9) for task in self._pool}
        left = [task for task in self._pool if task.id not in taken]
        return sorted(left, key=lambda task: keys[task.id], reverse=True)


def _walk(pool: Sequence[Task], seed: int, place: int) -> Task:
    """Task at ``place`` of an endless walk that visits the whole pool, in a fresh order, epoch by epoch."""
    epoch, place = divmod(place, len(pool))
    return pool[_permutation(len(pool), f"{seed}/epoch/{epoch}")[place]]


def _permutation(size: int, key: str) -> list[int]:
    order = list(range(size))
    random.Random(key).shuffle(order)
    return order
