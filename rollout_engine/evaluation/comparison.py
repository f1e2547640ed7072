"""Two policies on the same tasks, paired by task.

Invariant: a comparison is only made over the very same tasks, so each task is its own control and a
difference can't come from an easier draw. Every family that fell is named, however well the rest did.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from scipy.stats import binomtest

from rollout_engine.errors import ConfigurationError
from rollout_engine.evaluation.metrics import Interval, TaskOutcome, bootstrap_interval, grouped


class FamilyFall(msgspec.Struct, frozen=True):
    """A family whose pass@1 is lower after training."""

    family: str
    tasks: int
    base: float
    trained: float
    change: float
    under_half: bool
    """Ended under half of where it began."""


class Comparison(msgspec.Struct, frozen=True):
    """What training changed, on the same tasks."""

    tasks: int
    pass_at_1_change: float
    pass_at_1_interval: Interval
    """95 % paired bootstrap over tasks."""
    observed_all_factor: float | None
    """None when no task was reliable before."""
    observed_all_gained: int
    """Tasks that passed every attempt after, and not before."""
    observed_all_lost: int
    observed_all_p: float
    """McNemar's exact two-sided test on gained against lost."""
    solved_gained: int
    """Tasks solved at least once after, and never before."""
    solved_lost: int
    families_fallen: tuple[FamilyFall, ...]
    """Deepest fall first."""


def compare(base: Sequence[TaskOutcome], trained: Sequence[TaskOutcome]) -> Comparison:
    """Pair the tasks of two campaigns; raises :class:`ConfigurationError` unless they are the same tasks."""
    before, after = _paired(base, trained)
    changes = np.array([b.rate - a.rate for a, b in zip(before, after, strict=True)])
    gained, lost = _moved(before, after, lambda outcome: outcome.reliable)
    solved_gained, solved_lost = _moved(before, after, lambda outcome: outcome.passes > 0)
    reliable = sum(outcome.reliable for outcome in before)
    return Comparison(
        tasks=len(before),
        pass_at_1_change=float(changes.mean()),
        pass_at_1_interval=bootstrap_interval(changes),
        observed_all_factor=sum(outcome.reliable for outcome in after) / reliable if reliable else None,
        observed_all_gained=gained,
        observed_all_lost=lost,
        observed_all_p=float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0,
        solved_gained=solved_gained,
        solved_lost=solved_lost,
        families_fallen=_fallen(before, after),
    )


def _paired(base, trained) -> tuple[list[TaskOutcome], list[TaskOutcome]]:
    before = {outcome.task: outcome for outcome in base}
    after = {outcome.task: outcome for outcome in trained}
    if odd := sorted(before.keys() ^ after.keys()):
        raise ConfigurationError(
            f"the campaigns aren't over the same tasks: {len(odd)} are in one only, the first {odd[0]}. "
            "Evaluate both policies with the same --tasks"
        )
    order = sorted(before)
    return [before[task] for task in order], [after[task] for task in order]


def _moved(before, after, holds) -> tuple[int, int]:
    pairs = [(holds(a), holds(b)) for a, b in zip(before, after, strict=True)]
    return pairs.count((False, True)), pairs.count((True, False))


def _fallen(before, after) -> tuple[FamilyFall, ...]:
    falls = []
    trained = grouped(after, lambda outcome: outcome.scope)
    for family, tasks in grouped(before, lambda outcome: outcome.scope).items():
        old = float(np.mean([outcome.rate for outcome in tasks]))
        new = float(np.mean([outcome.rate for outcome in trained[family]]))
        if new < old:
            falls.append(FamilyFall(family, len(tasks), old, new, new - old, new < old / 2))
    return tuple(sorted(falls, key=lambda fall: (fall.change, fall.family)))
