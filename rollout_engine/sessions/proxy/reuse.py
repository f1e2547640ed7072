"""Sessions that are asked for with equal configurations, as clones of one that was initialized once.

Invariant: a clone is what a fresh session of the same configuration would be, except that what its servers' init tools
drew at random, or read from a clock, is the same in all of them. A world is closed only when no session is a clone of
it any more: its teardown takes what the clones share with it. Where a server can't be cloned, or a world has died, the
session is opened afresh.

This is for groups: the samples of one task, ``tb infer -r 8``.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

import trio

from rollout_engine.sessions.errors import HostFull, SessionError
from rollout_engine.sessions.host import SessionHost
from rollout_engine.sessions.opening import OpenSession, ServesSessions


class _World:
    """One initialized session, held open by a task of its own."""

    def __init__(self) -> None:
        self.template: Any = None
        self.users = 0
        self.known = trio.Event()
        """Set once it is known whether there is a template."""
        self._retired = False
        self._end = trio.Event()

    @contextmanager
    def used(self) -> Iterator[None]:
        """It isn't closed during the block."""
        self.users += 1
        try:
            yield
        finally:
            self.users -= 1
            if self._retired:
                self.retire()

    def retire(self) -> None:
        """Close it, as soon as it isn't used."""
        self._retired = True
        if not self.users:
            self._end.set()

    async def hold(self, opening: AbstractAsyncContextManager[Any], refused: Callable[[], None]) -> None:
        """Keep a template until it is retired; ``refused`` is called where its servers can't be cloned."""
        try:
            async with opening as template:
                if template.reason:
                    refused()
                    return
                self.template = template
                self.known.set()
                await self._end.wait()
        except SessionError:
            # Whoever asked for it opens afresh, and meets the fault if there still is one.
            pass
        finally:
            self.template = None
            self.known.set()


class ReusingHost:
    """A host like ``host``, which keeps up to ``worlds`` initialized sessions to clone from."""

    def __init__(self, host: SessionHost, worlds: int, nursery: trio.Nursery):
        self.servers = host.servers
        self._host = host
        self._most = worlds
        self._nursery = nursery
        self._worlds: OrderedDict[bytes, _World] = OrderedDict()
        self._uncloneable: set[tuple[str, ...]] = set()

    @asynccontextmanager
    async def open(
        self,
        configs: Mapping[str, Any],
        seed: int = 0,
        tools: Sequence[str] | None = None,
        session_id: str | None = None,
    ) -> AsyncIterator[OpenSession]:
        """As the host's own. Raises SessionError."""
        async with AsyncExitStack() as stack:
            session = await self._clone(configs, seed, tools, stack)
            if session is None:
                opening = self._host.open(configs, seed=seed, tools=tools, session_id=session_id)
                session = await stack.enter_async_context(opening)
            yield session

    def close(self) -> None:
        """Give up every world."""
        for world in self._worlds.values():
            world.retire()
        self._worlds.clear()

    async def _clone(
        self, configs: Mapping[str, Any], seed: int, tools: Sequence[str] | None, stack: AsyncExitStack
    ) -> Any:
        """A clone, entered on ``stack``; None where the session has to be opened afresh."""
        if tuple(configs) in self._uncloneable:
            return None
        key = hashlib.sha256(json.dumps([list(configs.items()), tools]).encode()).digest()
        world = self._worlds.get(key) or self._make(key, configs, tools)
        if world is None:
            return None
        self._worlds.move_to_end(key)
        stack.enter_context(world.used())
        await world.known.wait()
        try:
            if world.template is not None:
                return await stack.enter_async_context(world.template.clone(seed=seed))
        except HostFull:
            raise
        except SessionError:
            # Of no use any more.
            pass
        if self._worlds.get(key) is world:
            del self._worlds[key]
            world.retire()
        return None

    def _make(self, key: bytes, configs: Mapping[str, Any], tools: Sequence[str] | None) -> _World | None:
        """A new world, in the place of the one that hasn't been used for longest; None where all are in use."""
        if len(self._worlds) >= self._most:
            idle = next((key for key, world in self._worlds.items() if not world.users), None)
            if idle is None:
                return None
            self._worlds.pop(idle).retire()
        world = self._worlds[key] = _World()
        opening = self._host.template(configs, seed=0, tools=tools)
        self._nursery.start_soon(world.hold, opening, lambda: self._uncloneable.add(tuple(configs)))
        return world


@asynccontextmanager
async def reusing(host: SessionHost, worlds: int) -> AsyncIterator[ServesSessions]:
    """``host`` itself where ``worlds`` is 0, else one that reuses so many. Leave it after its sessions."""
    if not worlds:
        yield host
        return
    async with trio.open_nursery() as nursery:
        reuser = ReusingHost(host, worlds, nursery)
        try:
            yield reuser
        finally:
            reuser.close()
