"""Many actors as one policy.

Invariant: an episode's requests go to one actor, for its prefix cache, until that actor fails; then the whole
prompt goes to another, which is all it takes, because a request carries every id. Only an actor that says it
serves the wanted policy version, and said so lately, is asked.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import trio

from protocol.bus import Bus
from protocol.config import Config
from protocol.records import ActorStatus
from rollout_engine.actors.connections import KeptConnections
from rollout_engine.actors.policy import GenerateRequest, Generation
from rollout_engine.actors.vllm import ActorRefusal, VllmActor
from rollout_engine.errors import ActorError, ConfigurationError

_REMEMBERED = 16384
"""Episodes whose actor is remembered. A forgotten one is placed anew."""
_POLL = 0.2
"""Seconds between looks at the actors while none can serve."""


@dataclass
class _Member:
    actor: VllmActor
    in_flight: int = 0
    suspect_since: float | None = None
    """Unix time of a failure that no later word from the actor has cleared."""


Look = Callable[[], Awaitable[dict[str, ActorStatus | None]]]
"""Who can serve now: by URL, the heartbeat where there is one."""


class ActorPool:
    """:class:`~rollout_engine.actors.policy.Policy` over all actors that ``look`` reports.

    Made by :meth:`on_bus` or :meth:`attached`. ``wait`` bounds, in seconds, how long one request waits for an
    actor that can serve it.
    """

    def __init__(self, look: Look, connect: Callable[[str], VllmActor], *, wait: float, require_wait: float):
        self._look = look
        self._connect = connect
        self._wait = wait
        self._require_wait = require_wait
        self._version: int | None = None
        self._members: dict[str, _Member] = {}
        self._live: dict[str, ActorStatus | None] = {}
        self._looked = -float("inf")
        self._looking = trio.Lock()
        self._placed: OrderedDict[str, str] = OrderedDict()

    @classmethod
    @asynccontextmanager
    async def on_bus(cls, bus: Bus, config: Config, urls: Sequence[str] = ()) -> AsyncIterator[ActorPool]:
        """The actors registered on the bus (only those at ``urls``, if given), at proven policy versions.

        Raises :class:`ConfigurationError` when there is none.
        """
        wanted = {url.rstrip("/") for url in urls}
        # A sidecar beats every health_every seconds and misses beats while a server starts to swap.
        lifetime = max(10.0, 5 * config.actor.health_every)

        async def look() -> dict[str, ActorStatus | None]:
            now = time.time()
            fresh = [status for status in await bus.actors() if now - status.time < lifetime]
            return {status.url: status for status in fresh if not wanted or status.url in wanted}

        async with _client() as client:

            def connect(url: str) -> VllmActor:
                return VllmActor(url, client, timeout=config.rollout.limits.generate)

            pool = cls(look, connect, wait=config.rollout.limits.generate, require_wait=config.rollout.batch)
            await pool._refresh()
            missing = wanted - pool._live.keys()
            if missing or not pool._live:
                where = f"at {', '.join(sorted(missing))}" if missing else "at all"
                raise ConfigurationError(
                    f"no actor {where} is registered for run {bus.run}: start one with `bin/actor --config FILE`"
                    + (f" --url {sorted(missing)[0]}" if missing else "")
                )
            yield pool

    @classmethod
    @asynccontextmanager
    async def attached(cls, urls: Sequence[str], config: Config, version: int = 0) -> AsyncIterator[ActorPool]:
        """The servers at ``urls``, whatever they hold, which is called ``version``: outside a training run.

        Raises :class:`ConfigurationError` unless one of them answers.
        """
        async with _client() as client:
            actors = {
                url: VllmActor(url, client, timeout=config.rollout.limits.generate, version=version)
                for url in dict.fromkeys(url.rstrip("/") for url in urls)
            }

            async def look() -> dict[str, ActorStatus | None]:
                live: dict[str, ActorStatus | None] = {}

                async def ask(url: str) -> None:
                    if await actors[url].healthy():
                        live[url] = None

                async with trio.open_nursery() as nursery:
                    for url in actors:
                        nursery.start_soon(ask, url)
                return live

            wait = config.rollout.limits.generate
            pool = cls(look, actors.__getitem__, wait=wait, require_wait=wait)
            await pool._refresh()
            if not pool._live:
                raise ConfigurationError(
                    f"no actor answers at {', '.join(actors) or '(no URL given)'}: start one with "
                    f"`bin/actor --config FILE`, or name others with --actors URL[,URL…]"
                )
            yield pool

    async def require(self, version: int) -> None:
        """From now on ask only actors that serve ``version``; wait (``rollout.batch``) until one does.

        Raises :class:`ActorError` saying what the actors are doing instead.
        """
        if version != self._version:
            self._version = version
            self._looked = -float("inf")
        await self._wait_for_one(self._require_wait)

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one turn; raises :class:`ActorError` when no actor could."""
        failures: list[str] = []
        while True:
            if failures or not self._candidates():
                try:
                    await self._wait_for_one(self._wait)
                except ActorError as error:
                    raise ActorError("; ".join([*failures, str(error)])) from error
            member = self._place(request.episode)
            member.in_flight += 1
            try:
                return await member.actor.generate(request)
            except ActorRefusal:
                raise
            except ActorError as error:
                failures.append(str(error))
                member.suspect_since = time.time()
                self._placed.pop(request.episode, None)
                self._looked = -float("inf")
                if len(failures) > len(self._members):
                    raise ActorError("; ".join(failures)) from error
            finally:
                member.in_flight -= 1

    def _place(self, episode: str) -> _Member:
        """The episode's actor; for a new or displaced one the least loaded."""
        candidates = self._candidates()
        url = self._placed.get(episode)
        if url not in candidates:
            url = min(candidates, key=lambda url: (candidates[url].in_flight, self._busy(url), url))
        self._placed[episode] = url
        self._placed.move_to_end(episode)
        if len(self._placed) > _REMEMBERED:
            self._placed.popitem(last=False)
        return candidates[url]

    def _busy(self, url: str) -> int:
        status = self._live[url]
        return status.load.running + status.load.waiting if status else 0

    def _candidates(self) -> dict[str, _Member]:
        return {url: member for url, member in self._members.items() if self._can_serve(url, member)}

    def _can_serve(self, url: str, member: _Member) -> bool:
        if url not in self._live or member.suspect_since is not None:
            return False
        status = self._live[url]
        return status is None or (status.serving and self._version in (None, status.version))

    async def _wait_for_one(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            while True:
                await self._refresh()
                if self._candidates():
                    return
                await trio.sleep(_POLL)
        raise ActorError(f"no actor serves {self._wanted()} after {seconds:g} s: {self._state()}")

    async def _refresh(self) -> None:
        async with self._looking:
            if trio.current_time() - self._looked < _POLL:
                return
            began = time.time()
            self._live = await self._look()
            self._looked = trio.current_time()
        for url, status in self._live.items():
            member = self._members.setdefault(url, _Member(self._connect(url)))
            if member.suspect_since is not None:
                heard = began if status is None else status.time
                if heard > member.suspect_since:
                    member.suspect_since = None

    def _wanted(self) -> str:
        return "this run" if self._version is None else f"policy version {self._version}"

    def _state(self) -> str:
        if not self._live:
            return f"none is alive (known: {', '.join(self._members) or 'none'})"
        return "; ".join(
            f"{url}: {_describe(status, self._members[url].suspect_since)}" for url, status in self._live.items()
        )


def _describe(status: ActorStatus | None, suspect_since: float | None) -> str:
    if suspect_since is not None:
        return "has just failed"
    if status is None:
        return "answers"
    if status.serving:
        return f"serves version {status.version}"
    return status.note or "is not serving"


@asynccontextmanager
async def _client() -> AsyncIterator[httpx.AsyncClient]:
    # Proxies of the environment are for the outside world, never for a policy server.
    # Servers drop idle connections after 5 s by default; one dropped as we send looks like a dead actor.
    async with httpx.AsyncClient(transport=KeptConnections(keepalive=4.0), trust_env=False) as client:
        yield client
