"""Predicted chances held against what came out, so that a stated confidence is kept.

Invariant: without evidence a chance is left as it is. A posterior knows its own task only: that nearly all tasks which
failed eight times never pass at all is a property of the pool, and shows in how often groups of such a chance come out
mixed. So each range of predicted chances is scaled by (mixed + 1) / (expected + 1), sums over past groups that lose
weight with every step.
"""

from __future__ import annotations

BINS = 12
"""Ranges of equal width in [0, 1]."""


class Calibration:
    """``keep``: share of its weight that evidence keeps from one step to the next."""

    def __init__(self, keep: float):
        self._keep = keep
        self._mixed = [0.0] * BINS
        self._expected = [0.0] * BINS

    def observe(self, chance: float, mixed: bool) -> None:
        """A group of predicted ``chance`` in [0, 1] has come out."""
        self._mixed[_bin(chance)] += mixed
        self._expected[_bin(chance)] += chance

    def fade(self, steps: int) -> None:
        """So many steps have passed."""
        weight = self._keep**steps
        self._mixed = [weight * value for value in self._mixed]
        self._expected = [weight * value for value in self._expected]

    def chance(self, predicted: float) -> float:
        """``predicted``, corrected; in [0, 1]."""
        found = _bin(predicted)
        return min(1.0, predicted * (self._mixed[found] + 1) / (self._expected[found] + 1))


def _bin(chance: float) -> int:
    return min(BINS - 1, int(chance * BINS))
