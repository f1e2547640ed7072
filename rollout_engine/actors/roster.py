"""The actors there are: who lives, who serves a wanted policy version, who has proven what.

Invariant: only an actor that says it serves a wanted version, and said so lately, may be asked. Actors come and go
while the roster is in use: who registers on the bus may be asked as soon as it serves a wanted version, by itself.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import trio

from protocol.records import ActorLoad, ActorStatus
from rollout_engine.actors.placement import Member
from rollout_engine.actors.vllm import VllmActor
from rollout_engine.errors import ActorError

POLL = 0.2
"""Seconds between looks at the actors while somebody waits for them."""

Look = Callable[[], Awaitable[dict[str, ActorStatus | None]]]
"""Who lives now: by URL, the heartbeat where there is one."""


class Roster:
    """What ``look`` has reported. ``connect`` makes the client of a URL, once.

    ``max_staleness`` is how many versions after the wanted one will do as well.
    """

    def __init__(self, look: Look, connect: Callable[[str], VllmActor], max_staleness: int = 0):
        self._look = look
        self._connect = connect
        self._max_staleness = max_staleness
        self._version: int | None = None
        self._looked = -float("inf")
        self._looking = trio.Lock()
        self.live: dict[str, ActorStatus | None] = {}
        self.actors: dict[str, VllmActor] = {}
        self.members: dict[str, Member] = {}

    def want(self, version: int) -> None:
        """From now on only actors at ``version``, or up to ``max_staleness`` after it, will do."""
        if version != self._version:
            self._version = version
            self.distrust()

    def distrust(self) -> None:
        """The next look is a new one, however recent the last."""
        self._looked = -float("inf")

    def candidates(self) -> dict[str, Member]:
        """Who may be asked now, by URL."""
        return {url: member for url, member in self.members.items() if self._can_serve(url, member)}

    def load(self, url: str) -> ActorLoad:
        """An actor's own load figures; none of one without heartbeats."""
        status = self.live.get(url)
        return ActorLoad() if status is None else status.load

    async def refresh(self) -> None:
        """Look, unless somebody just has."""
        async with self._looking:
            if trio.current_time() - self._looked < POLL:
                return
            began = time.time()
            self.live = await self._look()
            self._looked = trio.current_time()
        for url, status in self.live.items():
            if url not in self.actors:
                self.actors[url], self.members[url] = self._connect(url), Member()
            member = self.members[url]
            if member.suspect_since is not None:
                heard = began if status is None else status.time
                if heard > member.suspect_since:
                    member.suspect_since = None

    async def wait_for_one(self, seconds: float) -> None:
        """Return once somebody may be asked; raise :class:`ActorError` at the bound, saying what they do instead."""
        with trio.move_on_after(seconds):
            while True:
                await self.refresh()
                if self.candidates():
                    return
                await trio.sleep(POLL)
        raise ActorError(f"no actor serves {self._wanted()} after {seconds:g} s: {self._state()}")

    async def proof(self, url: str, version: int, seconds: float) -> None:
        """Return once the actor at ``url`` has proven ``version``, which it has sampled with unproven.

        Raises :class:`ActorError` when it hasn't: its proof failed, it went away, or it goes on with other weights.
        """
        with trio.move_on_after(seconds):
            while True:
                await self.refresh()
                status = self.live.get(url)
                if status is None or not status.serving or status.version > version:
                    said = "is gone" if status is None else _describe(status, Member())
                    raise ActorError(f"{url} sampled with weights {version} and has not proven them: it {said}")
                if status.version == version:
                    return
                await trio.sleep(POLL)
        raise ActorError(f"{url} sampled with weights {version} and has not proven them after {seconds:g} s")

    def _can_serve(self, url: str, member: Member) -> bool:
        if url not in self.live or member.suspect_since is not None or member.resting(trio.current_time()):
            return False
        status = self.live[url]
        return status is None or (status.serving and self._wants(status.version))

    def _wants(self, version: int) -> bool:
        return self._version is None or self._version <= version <= self._version + self._max_staleness

    def _wanted(self) -> str:
        if self._version is None:
            return "this run"
        later = f" to {self._version + self._max_staleness}" if self._max_staleness else ""
        return f"policy version {self._version}{later}"

    def _state(self) -> str:
        if not self.live:
            return f"none is alive (known: {', '.join(self.members) or 'none'})"
        return "; ".join(f"{url}: {_describe(status, self.members[url])}" for url, status in self.live.items())


def _describe(status: ActorStatus | None, member: Member) -> str:
    if member.suspect_since is not None:
        return "has just failed"
    if member.resting(trio.current_time()):
        return "has no room"
    if status is None:
        return "answers"
    if status.serving:
        return f"serves version {status.version}"
    return status.note or "is not serving"
