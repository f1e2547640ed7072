"""Which task a group runs: a pure function of (pool, seed, step, group number).

Invariant: an engine restarted in mid-step gives every group the task that it had before, and over the
run every task of the pool is visited equally often by first-choice groups.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from rollout_engine.environments.task import Task


def task_for(pool: Sequence[Task], seed: int, step: int, group: int, groups: int) -> Task:
    """The task of ``group``.

    Groups below ``groups`` walk through the pool epoch by epoch, each epoch a fresh permutation, so that
    consecutive steps share no task before the pool is through. Later groups are replacements: they follow
    a permutation of the step's own.
    """
    if group < groups:
        epoch, place = divmod(step * groups + group, len(pool))
        return pool[_permutation(len(pool), f"{seed}/epoch/{epoch}")[place]]
    epoch, place = divmod(group - groups, len(pool))
    return pool[_permutation(len(pool), f"{seed}/step/{step}/{epoch}")[place]]


def _permutation(size: int, key: str) -> list[int]:
    order = list(range(size))
    random.Random(key).shuffle(order)
    return order
