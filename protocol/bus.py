"""The bus: the log of a run, with one interface under trio and under asyncio.

    async with connect(config.nats, run) as bus:
        await bus.publish_trajectory(trajectory)

Invariant: nothing that was published is lost or doubled, whoever dies: a publish returns once the server has
stored the record, and publishing it again changes nothing (rule 10). Every wait has a bound, and every failure
is a :class:`~protocol.errors.BusError`.

nats-py is an asyncio library. Under asyncio it runs in the caller's loop; under trio on a portal thread.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from protocol.asyncio_bus import AsyncioBus
from protocol.config import Nats
from protocol.connection import Connection
from protocol.errors import (
    BusClosed,
    BusError,
    ForkUnfinished,
    JetStreamMissing,
    PayloadLimit,
    RecordDamaged,
    RecordMissing,
    RecordPurged,
    RunNotFound,
    ServerUnreachable,
    StorageFull,
    WaitExpired,
)
from protocol.portal import Portal
from protocol.records import ActorStatus, Attempts, Batch, Origin, PolicyVersion, Trajectory, TrajectoryId

__all__ = [
    "Bus",
    "BusClosed",
    "BusError",
    "ForkUnfinished",
    "JetStreamMissing",
    "PayloadLimit",
    "RecordDamaged",
    "RecordMissing",
    "RecordPurged",
    "RunNotFound",
    "ServerUnreachable",
    "StorageFull",
    "WaitExpired",
    "check",
    "connect",
]

T = TypeVar("T")


class Bus:
    """A run's log. Made by :func:`connect`. Methods raise the errors of :mod:`protocol.errors`."""

    def __init__(self, core: AsyncioBus, call: Callable[..., Awaitable[Any]]):
        self._core = core
        self._call = call

    @property
    def run(self) -> str:
        return self._core.run

    def held_up(self) -> float:
        """Seconds so far in which a lost or full server kept some call waiting."""
        return self._core.connection.waits.seconds()

    async def publish_trajectory(self, trajectory: Trajectory) -> bool:
        """Log one trajectory. False: its (step, group, sample) is in the log already, maybe of another attempt."""
        return await self._call(self._core.publish_trajectory, trajectory)

    async def trajectories(self, step: int, arrays: bool = True) -> list[Trajectory]:
        """All logged trajectories of a step, by group and sample. ``arrays=False`` leaves claim checks unresolved."""
        return await self._call(self._core.trajectories, step, arrays)

    async def fetch(self, ids: Sequence[TrajectoryId]) -> list[Trajectory]:
        """These trajectories, in this order, arrays in place; raises :class:`RecordMissing` naming one that isn't."""
        return await self._call(self._core.fetch, ids)

    async def steps(self) -> list[int]:
        """Steps of which the log holds a trajectory, ascending."""
        return await self._call(self._core.steps)

    async def publish_attempts(self, record: Attempts) -> None:
        """Log attempts that are about to start, and those that failed."""
        await self._call(self._core.publish_attempts, record)

    async def attempts(self, step: int) -> list[Attempts]:
        """All records of attempts of a step, of every engine that worked on it, in the order they were logged."""
        return await self._call(self._core.attempts, step)

    async def publish_batch(self, batch: Batch) -> bool:
        """Log a step's manifest. False: the step has one already."""
        return await self._call(self._core.publish_batch, batch)

    async def batch_steps(self) -> list[int]:
        """Steps that have a manifest, ascending."""
        return await self._call(self._core.batch_steps)

    async def batch(self, step: int) -> Batch | None:
        """A step's manifest, or None."""
        return await self._call(self._core.batch, step)

    async def wait_batch(self, step: int, timeout: float | None = None) -> Batch:
        """A step's manifest, as soon as it is there; :class:`WaitExpired` after ``timeout`` (``nats.wait``) seconds."""
        return await self._call(self._core.wait_batch, step, timeout)

    async def publish_policy(self, version: PolicyVersion) -> bool:
        """Log a policy version. False: the log holds this one or a later one already."""
        return await self._call(self._core.publish_policy, version)

    async def policy(self) -> PolicyVersion | None:
        """The newest policy version, or None."""
        return await self._call(self._core.policy)

    async def policies(self) -> list[PolicyVersion]:
        """Every policy version, ascending."""
        return await self._call(self._core.policies)

    async def wait_policy(self, version: int, timeout: float | None = None) -> PolicyVersion:
        """The newest policy version, as soon as it is ``version`` or later; :class:`WaitExpired` at the bound."""
        return await self._call(self._core.wait_policy, version, timeout)

    async def horizon(self) -> int:
        """The first step whose trajectories the log keeps: 0 unless retention has removed some (``nats.retain``)."""
        return await self._call(self._core.horizon)

    async def publish_horizon(self, first: int) -> bool:
        """Log that the trajectories of steps before ``first`` aren't kept. False: it says so already."""
        return await self._call(self._core.publish_horizon, first)

    async def publish_origin(self, origin: Origin) -> bool:
        """Log where this run was forked from. False: that is logged already."""
        return await self._call(self._core.publish_origin, origin)

    async def origin(self) -> Origin | None:
        """Where this run was forked from; None when it is no fork."""
        return await self._call(self._core.origin)

    async def put_actor(self, status: ActorStatus) -> None:
        """Record an actor's heartbeat under its id."""
        await self._call(self._core.put_actor, status)

    async def actors(self) -> list[ActorStatus]:
        """The last heartbeat of every actor that ever registered, by id. ``time``: when the server received it, by this
        host's clock, whatever the actor's own shows."""
        return await self._call(self._core.actors)

    async def emit(self, kind: str, data: dict[str, Any]) -> None:
        """Tell whoever listens now (terminals, dashboards). Not kept, not retried."""
        await self._call(self._core.emit, kind, data)


@asynccontextmanager
async def connect(config: Nats, run: str, create: bool = True, forking: bool = False) -> AsyncIterator[Bus]:
    """Open the log of ``run``, under trio or asyncio.

    The stream and buckets are created where absent; with ``create=False`` an absent run raises
    :class:`RunNotFound`. Raises :class:`ServerUnreachable` (after ``nats.connect_timeout``),
    :class:`JetStreamMissing`, :class:`PayloadLimit`, and :class:`ForkUnfinished` unless ``forking``.
    """
    core = AsyncioBus(config, run)
    async with _calls_of_this_library() as call:
        try:
            await call(core.open, create, forking)
            yield Bus(core, call)
        finally:
            await _shielded(call, core.close)


async def check(config: Nats) -> None:
    """Raise what :func:`connect` would of the server, without making a run."""
    connection = Connection(config)
    async with _calls_of_this_library() as call:
        try:
            await call(connection.open)
        finally:
            await _shielded(call, connection.close)


@asynccontextmanager
async def _calls_of_this_library() -> AsyncIterator[Callable[..., Awaitable[Any]]]:
    """How nats-py's coroutines are called from here: directly, or, under trio, through a portal."""
    if _under_trio():
        with Portal("bus") as portal:
            yield portal.call_from_trio
    else:

        async def call(function: Callable[..., Awaitable[T]], *args: Any) -> T:
            return await function(*args)

        yield call


async def _shielded(call: Callable[..., Awaitable[Any]], close: Callable[[], Awaitable[None]]) -> None:
    """Close, though the caller be cancelled. That is bounded by nats.connect_timeout, so the shield is too."""
    if _under_trio():
        import trio

        with trio.CancelScope(shield=True):
            await call(close)
    else:
        await call(close)


def _under_trio() -> bool:
    # Whoever runs under trio has imported it; the learner and the sidecar never do.
    trio = sys.modules.get("trio")
    return trio is not None and trio.lowlevel.in_trio_task()
