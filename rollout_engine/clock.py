"""The time bound of one step, which stands still while nothing can go on.

Invariant: time in which an outage held launches up, or in which the log could not be written, counts for nothing,
however often it came and went.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

_SOONEST = 1.0
"""Seconds to the next look at a clock that may stand still: it passes its bound by at most this."""


class StepClock:
    """``async with StepClock(seconds, held_up).running() as clock:`` cancels its body after ``seconds``.

    ``held_up``  seconds so far, of any origin, that don't count; it only ever grows.
    """

    def __init__(self, seconds: float, held_up: Callable[[], float]):
        self._bound = seconds
        self._held_up = held_up
        self._scope = trio.CancelScope()
        self._started = trio.current_time()
        self._before = held_up()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[StepClock]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch)
            with self._scope:
                yield self
            nursery.cancel_scope.cancel()

    @property
    def expired(self) -> bool:
        """Whether the body was cut short."""
        return self._scope.cancelled_caught

    @property
    def seconds(self) -> float:
        """Since the step began, pauses included."""
        return trio.current_time() - self._started

    async def _watch(self) -> None:
        # No look in between is needed: what is held up meanwhile only puts the end off.
        await trio.sleep(self._bound)
        while (left := self._bound + self._held_up() - self._before - self.seconds) > 0:
            await trio.sleep(max(left, _SOONEST))
        self._scope.cancel()
