"""How many groups to launch at once, so that the batch most likely fills without launching again.

Invariant: of all counts whose chance of a shortfall is at most 1 - confidence, the smallest is launched. A group
costs its episodes whether it is needed or not, and what a larger wave could save is at most the second wave's
groups times the chance of needing it: so the smallest count is also the one with the fewest expected episodes.

Groups come out informative independently, each with its own chance, so their number is Poisson-binomial; its tail is
summed exactly. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np


def fill_chance(chances: Iterable[float], needed: int) -> float:
    """Chance that at least ``needed`` of independent events happen, each with its chance in [0, 1]."""
    tail = _Tail(needed)
    for chance in chances:
        tail.add(chance)
    return tail.filled


def wave_size(
    needed: int, pending: Sequence[float], upcoming: Callable[[int], float], confidence: float, limit: int
) -> int:
    """Groups to launch now, on top of those pending: the fewest that come to ``needed`` informative groups with
    chance ``confidence`` and could do so at all, but at most ``limit``.

    ``pending``   chances of the groups that are running.
    ``upcoming``  chance of the i-th group from now in launch order (i from 0).
    """
    tail = _Tail(needed)
    for chance in pending:
        tail.add(chance)
    size = 0
    while size < limit and (len(pending) + size < needed or tail.filled < confidence):
        tail.add(upcoming(size))
        size += 1
    return size


class _Tail:
    """Distribution of a count of events, cut at ``needed``: entry k is the chance of exactly k, the last one of k or
    more."""

    def __init__(self, needed: int):
        self._counts = np.zeros(max(0, needed) + 1)
        self._counts[0] = 1.0

    @property
    def filled(self) -> float:
        return float(self._counts[-1])

    def add(self, chance: float) -> None:
        moved = self._counts[:-1] * chance
        self._counts[:-1] -= moved
        self._counts[1:] += moved
