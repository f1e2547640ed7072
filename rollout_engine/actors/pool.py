"""Many actors as one policy.

Invariant: an episode's requests go to one actor, for its prefix cache, until that actor fails or asks for a pause;
then the whole prompt goes to another, which is all it takes, because a request carries every id. Tokens of a version
that the actor is still proving are held back until it has (rule 20).
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import httpx
import trio

from protocol.bus import Bus
from protocol.config import Config
from protocol.records import ActorStatus
from rollout_engine.actors.connections import KeptConnections
from rollout_engine.actors.placement import choose
from rollout_engine.actors.policy import GenerateRequest, Generation
from rollout_engine.actors.roster import POLL, Look, Roster
from rollout_engine.actors.vllm import ActorBusy, ActorRefusal, VllmActor
from rollout_engine.errors import ActorError, ConfigurationError

_COMES_BACK = 30.0
"""Seconds for a registered actor that has fallen silent to say something again, when an engine starts."""
_REMEMBERED = 16384
"""Episodes whose actor is remembered. A forgotten one is placed anew."""


class ActorPool:
    """:class:`~rollout_engine.actors.policy.Policy` over all actors that ``look`` reports.

    Made by :meth:`on_bus` or :meth:`attached`. ``wait`` bounds, in seconds, how long one request waits for an
    actor that can serve it; ``max_staleness`` is how many versions after the required one will do as well.
    """

    def __init__(
        self,
        look: Look,
        connect: Callable[[str], VllmActor],
        *,
        wait: float,
        require_wait: float,
        max_staleness: int = 0,
    ):
        self._roster = Roster(look, connect, max_staleness)
        self._wait = wait
        self._require_wait = require_wait
        self._placed: OrderedDict[str, str] = OrderedDict()
        self.refused = 0
        """Requests so far that an actor had no room for."""

    @classmethod
    @asynccontextmanager
    async def on_bus(cls, bus: Bus, config: Config, urls: Sequence[str] = ()) -> AsyncIterator[ActorPool]:
        """The actors registered on the bus (only those at ``urls``, if given), at proven policy versions.

        Raises :class:`ConfigurationError` when there is none; one that has fallen silent has some seconds to come back.
        """
        wanted = {url.rstrip("/") for url in urls}
        # A sidecar beats every health_every seconds and misses beats while a server starts to swap.
        lifetime = max(10.0, 5 * config.actor.health_every)
        rollout, wait = config.rollout, config.rollout.limits.generate

        async def look() -> dict[str, ActorStatus | None]:
            now = time.time()
            fresh = [status for status in await bus.actors() if now - status.time < lifetime]
            return {status.url: status for status in fresh if not wanted or status.url in wanted}

        async with _client() as client:

            def connect(url: str) -> VllmActor:
                return VllmActor(
                    url, client, timeout=wait, proof=lambda version: pool._roster.proof(url, version, wait)
                )

            pool = cls(look, connect, wait=wait, require_wait=rollout.batch, max_staleness=rollout.max_staleness)
            roster, known = pool._roster, {status.url for status in await bus.actors()}
            await roster.refresh()
            with trio.move_on_after(_COMES_BACK):
                # Silent, but registered once: killed, as we may have been, and being started again.
                while known & wanted - roster.live.keys() if wanted else known and not roster.live:
                    await trio.sleep(POLL)
                    await roster.refresh()
            missing = wanted - roster.live.keys()
            if missing or not roster.live:
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
            await pool._roster.refresh()
            if not pool._roster.live:
                raise ConfigurationError(
                    f"no actor answers at {', '.join(actors) or '(no URL given)'}: start one with "
                    f"`bin/actor --config FILE`, or name others with --actors URL[,URL…]"
                )
            yield pool

    async def require(self, version: int) -> None:
        """From now on ask only actors that serve ``version``, or up to ``max_staleness`` after it; wait
        (``rollout.batch``) until one does.

        Raises :class:`ActorError` saying what the actors are doing instead.
        """
        self._roster.want(version)
        await self._roster.wait_for_one(self._require_wait)

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one turn; raises :class:`ActorError` when no actor could."""
        roster = self._roster
        failures: list[str] = []
        gives_up = float("inf")
        while True:
            if failures or not roster.candidates():
                try:
                    await roster.wait_for_one(self._wait)
                except ActorError as error:
                    raise ActorError("; ".join([*failures, str(error)])) from error
            url = self._place(request.episode)
            member, began = roster.members[url], trio.current_time()
            member.in_flight += 1
            try:
                generation = await roster.actors[url].generate(request)
                member.answered(len(generation.ids), trio.current_time() - began)
                return generation
            except ActorRefusal:
                raise
            except ActorBusy as error:
                # It is well: others are asked meanwhile, and it again once it has rested.
                now = trio.current_time()
                gives_up = min(gives_up, now + self._wait)
                if now >= gives_up:
                    raise
                self.refused += 1
                member.rest(now, error.retry_after, self._wait)
            except ActorError as error:
                failures.append(str(error))
                member.suspect_since = time.time()
                self._placed.pop(request.episode, None)
                roster.distrust()
                if len(failures) > len(roster.members):
                    raise ActorError("; ".join(failures)) from error
            finally:
                member.in_flight -= 1

    async def look(self) -> list[ActorStatus]:
        """Learn who came and who went, and return the last heartbeat of every actor that may be asked now.

        Whoever runs episodes calls it every now and then; :class:`~rollout_engine.actors.places.Places` does.
        """
        roster = self._roster
        await roster.refresh()
        return [status for url in roster.candidates() if (status := roster.live[url]) is not None]

    def _place(self, episode: str) -> str:
        """The episode's actor; for a new or displaced one the one that is expected to serve it soonest."""
        candidates = self._roster.candidates()
        url = self._placed.get(episode)
        if url not in candidates:
            url = choose(candidates, {url: self._roster.load(url) for url in candidates})
        self._placed[episode] = url
        self._placed.move_to_end(episode)
        if len(self._placed) > _REMEMBERED:
            self._placed.popitem(last=False)
        return url


@asynccontextmanager
async def _client() -> AsyncIterator[httpx.AsyncClient]:
    # Proxies of the environment are for the outside world, never for a policy server.
    # Servers drop idle connections after 5 s by default; one dropped as we send looks like a dead actor.
    async with httpx.AsyncClient(transport=KeptConnections(keepalive=4.0), trust_env=False) as client:
        yield client
