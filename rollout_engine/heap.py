"""Full garbage collections as rarely as memory allows.

Invariant: the event loop never stops for a full collection that isn't due, and one is due once the episodes that have
ended outnumber those that are open many times. An open episode is some hundreds of objects, and Python would go through
all of them each time that their number has grown by a quarter: hundreds of milliseconds at a thousand episodes, again
and again while they open. One that has ended leaves nothing behind that only a full collection finds
(:mod:`rollout_engine.environments.session`), one that was cancelled about 30 kB. Young objects are collected as ever,
and what lives as long as the process (modules, tasks, tokenizer) isn't looked at again.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_NEVER = 2**31 - 1
_LEFT = 1000
"""Ended episodes after which the heap is looked through where none is open: 30 MB if all were cancelled."""
_AN_OPEN_ONE = 16
"""As many more for each open one, because it makes looking longer."""


class Heap:
    """Made by :func:`paced_collections`; counts the episodes of a process."""

    def __init__(self) -> None:
        self._open = 0
        self._ended = 0

    @contextmanager
    def episode(self) -> Iterator[None]:
        """The body is an episode."""
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            self._ended += 1
            if self._ended >= _LEFT + _AN_OPEN_ONE * self._open:
                self._ended = 0
                gc.collect()


@contextmanager
def paced_collections() -> Iterator[Heap]:
    """In the body, full collections are run by the heap alone. Enter it when all is loaded."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(before[0], before[1], _NEVER)
    try:
        yield Heap()
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
