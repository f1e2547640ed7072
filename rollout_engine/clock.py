"""The time bound of one step, which stands still while nothing can go on.

Invariant: time in which an outage held launches up, or in which the log could not be written, counts for nothing,
however often it came and went, and where both did at once, not twice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

_LOOK = 1.0
"""Seconds between looks at what holds a step up: what happens within one counts as having happened at once."""
_SOONEST = 1e-3
"""Seconds to the next one, at least."""


class StepClock:
    """``async with StepClock(seconds, *held_up).running() as clock:`` cancels its body after ``seconds``.

    ``held_up``  of each cause, seconds so far, of any origin, that don't count; they only ever grow.
    """

    def __init__(self, seconds: float, *held_up: Callable[[], float]):
        self._bound = seconds
        self._held_up = held_up
        self._scope = trio.CancelScope()
        self._started = trio.current_time()
        self._told = self._look()

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
        held = 0.0
        while (left := self._bound + held - self.seconds) > 0:
            await trio.sleep(min(max(left, _SOONEST), _LOOK))
            before, self._told = self._told, self._look()
            held += max(now - then for then, now in zip(before, self._told, strict=True))
        self._scope.cancel()

    def _look(self) -> list[float]:
        return [told() for told in self._held_up]
