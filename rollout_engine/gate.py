"""The gate that every episode passes before it starts: open, but for outages.

Invariant: what ends an episode is told to the circuits before anything else starts, and whoever waits here is woken by
it. The wait is bounded by ``rollout.outage.longest``, after which :class:`RunStopped` says what to do.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from protocol.config import Outage
from rollout_engine.circuit import Circuits, OutageStatus
from rollout_engine.errors import EpisodeSystemError, RunStopped

_ADVICE = {
    "actor": "look at the actors (bin/actor) and their servers",
    "user": "look at the user model (rollout.user.endpoint) and its limits",
    "judge": "look at the judge's model and its limits",
    "grader": "look at the grader and rollout.limits.grader",
    "backend": "look at the environments' sessions and rollout.limits.tool_call",
}


@dataclass
class Admission:
    """One episode's passage."""

    excused: bool = False
    """Set when the episode failed: the error is an outage's, and spends no retry."""


class Gate:
    """Admits episodes of ``tasks`` tasks. ``changed`` is told the open outages whenever one opens, pauses, recovers or
    closes."""

    def __init__(self, settings: Outage, changed: Callable[[list[OutageStatus]], Awaitable[None]], tasks: int):
        self._settings = settings
        self._changed = changed
        self._told: list[tuple[str, bool, bool]] = []
        self._ended = trio.Event()
        self.circuits = Circuits(settings, tasks)

    @asynccontextmanager
    async def admit(self, task: str, first: bool) -> AsyncIterator[Admission]:
        """Around one episode of ``task``; ``first``: the sample's first attempt.

        Raises :class:`RunStopped` when an outage lasts too long.
        """
        number = await self._enter()
        admission = Admission()
        try:
            yield admission
        except EpisodeSystemError as error:
            admission.excused = self.circuits.failed(
                number, error.kind, task, trio.current_time(), first, error.retry_after, str(error)
            )
            await self._tell()
            raise
        except BaseException:
            self.circuits.abandoned(number)
            self._wake()
            raise
        self.circuits.succeeded(number, task, trio.current_time(), first)
        await self._tell()

    async def _enter(self) -> int:
        circuits = self.circuits
        while (number := circuits.admit(trio.current_time())) is None:
            if kind := circuits.overdue(trio.current_time()):
                raise self._stopped(kind)
            with trio.move_on_at(circuits.wake()):
                await self._ended.wait()
        if circuits.open:
            await self._tell()
        return number

    def _stopped(self, kind: str) -> RunStopped:
        late = next(outage for outage in self.circuits.status(trio.current_time()) if outage.kind == kind)
        advice = _ADVICE.get(kind, "look at what the error says")
        return RunStopped(
            f"{late.errors} system errors of kind {kind!r} for {self._settings.longest:g} s (rollout.outage.longest) "
            f"without one success; the last: {late.message or 'it says nothing'}. Please {advice}, then run the same "
            "command again. Whatever was complete is kept, and nothing was scored as a failure"
        )

    async def _tell(self) -> None:
        status = self.circuits.status(trio.current_time())
        said = [(outage.kind, outage.paused, outage.next_probe > 0) for outage in status]
        if said or self._told:
            self._wake()
        if said != self._told:
            self._told = said
            await self._changed(status)

    def _wake(self) -> None:
        self._ended.set()
        self._ended = trio.Event()
