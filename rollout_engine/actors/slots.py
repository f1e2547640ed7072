"""Places for episodes, as many as the actors bear.

Invariant: ``async with slots`` around an episode; one enters only while fewer run than the bound allows. Under a bound
that has fallen, those that run go on.
"""

from __future__ import annotations

from dataclasses import asdict
from types import TracebackType

import trio

from protocol.bus import Bus
from protocol.config import Rollout
from rollout_engine.actors.concurrency import Concurrency, LoadMeter
from rollout_engine.actors.pool import ActorPool


class Slots:
    """Between ``rollout.min_concurrency`` and ``rollout.concurrency`` places, which :meth:`follow` adjusts."""

    def __init__(self, rollout: Rollout):
        self._control = Concurrency(rollout.min_concurrency, rollout.concurrency)
        self._meter = LoadMeter()
        self._limiter = trio.CapacityLimiter(self._control.limit)
        self._ended = 0

    @property
    def limit(self) -> int:
        return self._control.limit

    async def __aenter__(self) -> None:
        await self._limiter.acquire()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._limiter.release()
        self._ended += 1

    async def follow(self, pool: ActorPool, bus: Bus, every: float) -> None:
        """Look at the actors every so many seconds, for ever, and adjust the number of places to their load.

        It is also how the pool learns of actors that come in mid-run. Each change is told as event ``concurrency``.
        """
        while True:
            await trio.sleep(every)
            reading = self._meter.read(await pool.look(), pool.refused)
            if reading is None:
                continue
            state, before = self._limiter.statistics(), self.limit
            limit = self._control.observe(reading, state.borrowed_tokens, self._ended, state.tasks_waiting > 0)
            self._ended = 0
            if limit != before:
                self._limiter.total_tokens = limit
                await bus.emit("concurrency", {"limit": limit, "in_flight": state.borrowed_tokens, **asdict(reading)})
