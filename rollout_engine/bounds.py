"""Every wait has a bound, and a bound that is hit names what was waited for.

Invariant: a timeout of one of our own waits becomes the typed error of the boundary that was slow; a
cancellation from outside passes through untouched.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from rollout_engine.errors import EpisodeSystemError


@contextmanager
def bound(seconds: float, error: type[EpisodeSystemError], what: str) -> Iterator[None]:
    """Cancel the body after ``seconds`` and raise ``error`` saying that ``what`` took too long."""
    with trio.move_on_after(seconds) as scope:
        yield
    if scope.cancelled_caught:
        raise error(f"{what} took longer than {seconds:g} s")
