"""Reliability figures, as pure functions of complete campaigns.

Invariant: the unit is the task. Attempts of one task aren't independent, so every interval is over
tasks: treating 64 x 8 attempts as 512 coin flips would make it too narrow.

    pass@k   solved at least once in k attempts, unbiased: 1 - C(n-c, k) / C(n, k)   (Chen et al. 2021)
    pass^k   solved in all of k attempts, unbiased:        C(c, k) / C(n, k)         (tau-bench, 2024)
    observed k/k   tasks whose k recorded attempts all passed: counted, not estimated
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import comb, sqrt
from typing import TypeVar

import msgspec
import numpy as np
from scipy.special import ndtri

from rollout_engine.evaluation.attempts import AttemptRow

Interval = tuple[float, float]

_RESAMPLES = 4000
_LEVEL = 0.95


class TaskOutcome(msgspec.Struct, frozen=True):
    """One task's attempts, added up."""

    task: str
    domain: str
    family: str
    attempts: int
    passes: int
    tokens: int
    """Sampled and prompt tokens of all its attempts."""

    @property
    def scope(self) -> str:
        """The family's full name; two domains may use one family name."""
        return f"{self.domain}/{self.family}"

    @property
    def rate(self) -> float:
        return self.passes / self.attempts

    @property
    def reliable(self) -> bool:
        return self.passes == self.attempts


class Summary(msgspec.Struct, frozen=True):
    """Figures of a set of tasks with one number of attempts each. Shares are in [0, 1]."""

    tasks: int
    attempts: int
    """All attempts: tasks x attempts_per_task."""
    attempts_per_task: int
    passes: int
    pass_at_1: float
    pass_at_k: float
    """At k = attempts_per_task: share of tasks solved at least once."""
    observed_all: int
    """Tasks of which every recorded attempt passed."""
    observed_all_share: float
    pass_at: dict[int, float]
    """Unbiased pass@k by k."""
    pass_hat: dict[int, float]
    """Unbiased pass^k by k."""
    intervals: dict[str, Interval]
    """95 % intervals over tasks, of pass_at_1, pass_at_k and observed_all_share."""


def pass_at_k(attempts: int, passes: int, k: int) -> float:
    """Unbiased chance that at least one of ``k`` attempts passes, from ``passes`` of ``attempts``."""
    return 1.0 - comb(attempts - passes, k) / comb(attempts, k)


def pass_hat_k(attempts: int, passes: int, k: int) -> float:
    """Unbiased chance that all of ``k`` attempts pass, from ``passes`` of ``attempts``."""
    return comb(passes, k) / comb(attempts, k)


def outcomes(rows: Iterable[AttemptRow]) -> list[TaskOutcome]:
    """Add up graded rows by task, sorted by task id; error rows have no verdict and aren't counted."""
    by_task: dict[str, list[AttemptRow]] = {}
    for row in rows:
        if row.error is None:
            by_task.setdefault(row.task, []).append(row)
    return [
        TaskOutcome(
            task=task,
            domain=group[0].domain,
            family=group[0].family,
            attempts=len(group),
            passes=sum(row.passed for row in group),
            tokens=sum(row.sampled_tokens + row.prompt_tokens for row in group),
        )
        for task, group in sorted(by_task.items())
    ]


def summarize(tasks: Sequence[TaskOutcome]) -> Summary:
    """Figures of ``tasks``; raises ``ValueError`` when there are none or their attempts differ in number."""
    counts = {outcome.attempts for outcome in tasks}
    if len(counts) != 1:
        raise ValueError(f"figures need tasks of one number of attempts each, not {sorted(counts)}")
    (n,) = counts
    rates = np.array([outcome.rate for outcome in tasks])
    solved = sum(outcome.passes > 0 for outcome in tasks)
    reliable = sum(outcome.reliable for outcome in tasks)
    ks = curve_points(n)
    return Summary(
        tasks=len(tasks),
        attempts=n * len(tasks),
        attempts_per_task=n,
        passes=sum(outcome.passes for outcome in tasks),
        pass_at_1=float(rates.mean()),
        pass_at_k=solved / len(tasks),
        observed_all=reliable,
        observed_all_share=reliable / len(tasks),
        pass_at={k: _mean(pass_at_k(n, outcome.passes, k) for outcome in tasks) for k in ks},
        pass_hat={k: _mean(pass_hat_k(n, outcome.passes, k) for outcome in tasks) for k in ks},
        intervals={
            "pass_at_1": bootstrap_interval(rates),
            "pass_at_k": wilson_interval(solved, len(tasks)),
            "observed_all_share": wilson_interval(reliable, len(tasks)),
        },
    )


T = TypeVar("T")


def grouped(items: Iterable[T], key: Callable[[T], str]) -> dict[str, list[T]]:
    """Items by key, keys sorted."""
    groups: dict[str, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return dict(sorted(groups.items()))


def curve_points(attempts: int) -> list[int]:
    """Values of k worth a point: powers of two below ``attempts``, and ``attempts``."""
    return sorted({2**i for i in range(attempts.bit_length()) if 2**i <= attempts} | {attempts})


def bootstrap_interval(values: np.ndarray, resamples: int = _RESAMPLES) -> Interval:
    """Percentile interval of the mean of one value a task, resampling tasks. ``values``: [tasks].

    Deterministic: the same values give the same interval.
    """
    generator = np.random.default_rng(0)
    picks = generator.integers(len(values), size=(resamples, len(values)))
    tail = (1 - _LEVEL) / 2
    low, high = np.quantile(values[picks].mean(axis=1), [tail, 1 - tail])
    return float(low), float(high)


def wilson_interval(count: int, total: int) -> Interval:
    """Wilson's interval of a share of tasks; unlike the bootstrap's it has a width at 0 and at 1."""
    z = float(ndtri((1 + _LEVEL) / 2))
    share = count / total
    centre = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    return max(0.0, centre - half), min(1.0, centre + half)


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))
