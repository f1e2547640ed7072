"""Where ``bin/trajectories`` reads: a run on a NATS server, or exported files, behind one interface.

Invariant: reading changes nothing; a run that isn't there is an error, never created.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from protocol import log
from protocol.bus import Bus, connect
from protocol.config import Nats
from protocol.errors import RecordMissing
from protocol.log import Log
from protocol.records import Batch, Trajectory


class Source(Protocol):
    """One run's records."""

    async def steps(self) -> list[int]:
        """Steps with trajectories, ascending."""
        ...

    async def trajectories(self, step: int) -> list[Trajectory]:
        """A step's trajectories by group, sample and attempt; token arrays may be absent."""
        ...

    async def batch(self, step: int) -> Batch | None: ...


class BusSource:
    def __init__(self, bus: Bus):
        self._bus = bus

    async def steps(self) -> list[int]:
        return await self._bus.steps()

    async def trajectories(self, step: int) -> list[Trajectory]:
        return await self._bus.trajectories(step, arrays=False)

    async def batch(self, step: int) -> Batch | None:
        return await self._bus.batch(step)


class FileSource:
    def __init__(self, log: Log):
        self._log = log

    async def steps(self) -> list[int]:
        return sorted({id.step for id in self._log.trajectories})

    async def trajectories(self, step: int) -> list[Trajectory]:
        return [t for id, t in sorted(self._log.trajectories.items()) if id.step == step]

    async def batch(self, step: int) -> Batch | None:
        return self._log.batches.get(step)


@asynccontextmanager
async def open_source(run: str, nats: Nats, paths: Sequence[Path]) -> AsyncIterator[Source]:
    """The records of ``run``, from ``paths`` when there are any. Raises BusError or LogError."""
    if paths:
        found = log.read(paths)
        if found.run != run:
            raise RecordMissing(f"the files are of run {found.run!r}, not of {run!r}")
        yield FileSource(found)
    else:
        async with connect(nats, run, create=False) as bus:
            yield BusSource(bus)
