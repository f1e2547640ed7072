"""What a few probe attempts say about a task's true pass rate.

Invariant: k passes in n attempts give Beta(k + 1/2, n - k + 1/2), Jeffreys' posterior, and the masses of
any set of bands that tile [0, 1] sum to 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import betainc, betaincinv

PRIOR = 0.5
"""Both shape parameters of Jeffreys' prior for a Bernoulli rate."""


@dataclass(frozen=True)
class Posterior:
    """Beta(alpha, beta) over a pass rate."""

    alpha: float
    beta: float

    def masses(self, edges: Sequence[float]) -> tuple[float, ...]:
        """Mass of each band that inner ``edges`` (rising, in (0, 1)) cut [0, 1] into: len(edges) + 1 values."""
        below = betainc(self.alpha, self.beta, np.array([0.0, *edges, 1.0]))
        return tuple(float(mass) for mass in np.diff(below))

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Equal-tailed credible interval."""
        tail = (1 - level) / 2
        low, high = betaincinv(self.alpha, self.beta, np.array([tail, 1 - tail]))
        return float(low), float(high)

    def mixed(self, attempts: int) -> float:
        """Chance that ``attempts`` attempts come out mixed, neither all passed nor all failed.

        Beta-binomial, in closed form: 1 - E[p^n] - E[(1 - p)^n], E[p^n] being the product of (a + i) / (a + b + i)
        over i < n.
        """
        total = self.alpha + self.beta
        solved = math.prod((self.alpha + i) / (total + i) for i in range(attempts))
        failed = math.prod((self.beta + i) / (total + i) for i in range(attempts))
        return max(0.0, 1.0 - solved - failed)

    @property
    def mean(self) -> float:
        return self.alpha / (self.alpha + self.beta)


def jeffreys(attempts: float, passes: float) -> Posterior:
    """Posterior after ``passes`` of ``attempts`` (old ones may weigh less than 1); raises ``ValueError`` for an
    impossible count."""
    if not 0 <= passes <= attempts:
        raise ValueError(f"{passes} passes of {attempts} attempts")
    return Posterior(passes + PRIOR, attempts - passes + PRIOR)
