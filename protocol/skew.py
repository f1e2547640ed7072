"""How far apart this host's clock and a server's are, from answers that carry the server's time.

Invariant: what is said is never further off than half the quickest answer took, until one of the clocks is set. Pure.
"""

from __future__ import annotations

import math

_SET = 0.01
"""Seconds by which answers must contradict each other for a clock to have been set: less is its drift."""


class Skew:
    """``ahead``: seconds that our clock is ahead of the server's; 0 before the first answer."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self._error = math.inf

    def observe(self, asked: float, answered: float, server: float) -> None:
        """The server's clock showed ``server`` at some moment between ``asked`` and ``answered`` by ours (s)."""
        error = max(0.0, answered - asked) / 2
        ahead = (asked + answered) / 2 - server
        if error < self._error or abs(ahead - self.ahead) > error + self._error + _SET:
            self.ahead, self._error = ahead, error
