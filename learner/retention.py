"""Which checkpoints stay.

Invariant: a checkpoint goes only once nothing wants it: not a restart, which falls back to any of the last ones, nor
whoever asked for every m-th or for the best. It is a function of the steps that are there and of the scores.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from protocol.config import Learner


class Retention(NamedTuple):
    """The ``last`` so many, those of steps that ``every`` divides (0: none), and the ``best`` so many by held-out
    score."""

    last: int
    every: int = 0
    best: int = 0

    @classmethod
    def of(cls, learner: Learner) -> Retention:
        return cls(learner.keep_checkpoints, learner.keep_every, learner.keep_best)

    def kept(self, steps: Collection[int], scores: Mapping[int, float]) -> set[int]:
        """Of ``steps``. ``scores``: by step, of those that have one; of equal ones the later step is better."""
        ordered = sorted(steps)
        scored = sorted((step for step in ordered if step in scores), key=lambda step: (scores[step], step))
        periodic = [step for step in ordered if self.every and step % self.every == 0]
        return {*ordered[-self.last :], *periodic, *(scored[-self.best :] if self.best else ())}

    def oldest(self, steps: Collection[int]) -> int:
        """The oldest state that a restart may fall back to: of one of the last checkpoints, or the base weights (0)
        until there are as many."""
        return sorted({0, *steps})[-self.last :][0]
