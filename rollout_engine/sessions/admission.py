"""Room for open sessions: a bound on their number and on their memory, given in the order of asking.

Invariant: what is given out never exceeds either bound, except that a request larger than the whole
memory is let in alone rather than refused for ever. A later small request never overtakes an earlier large one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

from rollout_engine.sessions.errors import HostFull


@dataclass(eq=False)
class _Waiter:
    amount: int
    admitted: anyio.Event = field(default_factory=anyio.Event)


class Room:
    """``places`` and ``memory`` (bytes) to be had by :meth:`taken`."""

    def __init__(self, places: int, memory: int):
        self.places, self.memory = places, memory
        self.used_places = self.used_memory = 0
        self._waiting: deque[_Waiter] = deque()

    @asynccontextmanager
    async def taken(self, amount: int, timeout: float) -> AsyncIterator[None]:
        """One place and ``amount`` bytes for the time of the block.

        Raises HostFull after ``timeout`` seconds of waiting.
        """
        await self._acquire(amount, timeout)
        try:
            yield
        finally:
            self._free(amount)

    async def _acquire(self, amount: int, timeout: float) -> None:
        waiter = _Waiter(amount)
        self._waiting.append(waiter)
        self._admit()
        if waiter.admitted.is_set():
            return
        kept = False
        try:
            with anyio.fail_after(timeout):
                await waiter.admitted.wait()
            kept = True
        except TimeoutError:
            raise HostFull(
                f"no room for a session within {timeout:g} s: {self.used_places} of {self.places} places and "
                f"{self.used_memory >> 20} of {self.memory >> 20} MiB are taken; close sessions, or raise the limits"
            ) from None
        finally:
            if not kept:
                self._leave(waiter)

    def _leave(self, waiter: _Waiter) -> None:
        """Of one who gives up: it may have been admitted in the same moment."""
        if waiter.admitted.is_set():
            self._free(waiter.amount)
        else:
            self._waiting.remove(waiter)
            self._admit()

    def _free(self, amount: int) -> None:
        self.used_places -= 1
        self.used_memory -= amount
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            waiter = self._waiting[0]
            fits = self.used_memory + waiter.amount <= self.memory or not self.used_places
            if self.used_places >= self.places or not fits:
                return
            self._waiting.popleft()
            self.used_places += 1
            self.used_memory += waiter.amount
            waiter.admitted.set()
