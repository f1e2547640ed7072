"""The session host: isolated sessions over MCP servers, cheap to open, bounded in number, and never leaked.

Invariant: leaving the host's block leaves no process, descriptor or task behind, whatever happened inside; and every
wait has a bound in :class:`HostLimits`.

    async with SessionHost(load_servers("servers.yaml")) as host:
        async with host.open({"bookings": {"rows": [...]}}, seed=7) as session:
            result = await session.call("book", {"room": 12})
            effects = await session.effects()
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

import anyio

from rollout_engine.sessions.admission import Room
from rollout_engine.sessions.errors import HostFull, SessionError, SessionTimeout
from rollout_engine.sessions.limits import HostLimits, raise_descriptor_limit
from rollout_engine.sessions.links import Link, ProcessLink
from rollout_engine.sessions.modes import start_source
from rollout_engine.sessions.results import Mode
from rollout_engine.sessions.servers import ServerSpec
from rollout_engine.sessions.session import Session, Template
from rollout_engine.sessions.sources import Source


class SessionHost:
    """``async with SessionHost(servers, limits) as host``. Runs on trio and on asyncio."""

    def __init__(self, servers: Mapping[str, ServerSpec], limits: HostLimits | None = None):
        self.servers = {name: replace(spec, name=name) for name, spec in servers.items()}
        self.limits = limits or HostLimits()
        self.room = Room(self.limits.open, self.limits.memory_bytes)
        self._runnable = anyio.Semaphore(self.limits.runnable, fast_acquire=True)
        self._sources: dict[str, Source] = {}
        self._starting = {name: anyio.Lock() for name in self.servers}

    async def __aenter__(self) -> SessionHost:
        raise_descriptor_limit(self.limits.open)
        self._group = anyio.create_task_group()
        self._tasks = await self._group.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        with anyio.CancelScope(shield=True):
            for source in self._sources.values():
                await source.close()
        self._tasks.cancel_scope.cancel()
        # What the block raised is its own business: the group, whose tasks never raise, would wrap it.
        await self._group.__aexit__(None, None, None)

    @property
    def modes(self) -> dict[str, Mode]:
        """How sessions are made, of the servers used so far."""
        return {name: source.mode for name, source in self._sources.items()}

    async def examine(self, server: str) -> Mode:
        """Start a server, if that hasn't happened, and say how its sessions are made. Raises SessionError."""
        return (await self._source(server)).mode

    @asynccontextmanager
    async def bare(self, server: str) -> AsyncIterator[list[str]]:
        """A process of a server that nothing is asked of, for looking; gives the names of its tools."""
        source = await self._source(server)
        async with self._admitted(source.bytes()):
            link = await source.open(0)
            try:
                yield list(link.tools)
            finally:
                await link.close()

    @asynccontextmanager
    async def open(
        self,
        configs: Mapping[str, Any],
        seed: int = 0,
        tools: Sequence[str] | None = None,
        session_id: str | None = None,
    ) -> AsyncIterator[Session]:
        """A session over the servers named in ``configs``, each initialized with its configuration.

        ``tools``: the names an agent may call (None: all but reserved ones). ``seed`` sets the servers' random state.

        Raises HostFull, ServerStartFailed, InitFailed, SessionTimeout or another SessionError.
        """
        sources = [await self._source(server) for server in configs]
        async with self._admitted(sum(source.bytes() for source in sources)):
            links: dict[str, Link] = {}
            session: Session | None = None
            try:
                # One place for all of it, so that what is bounded is the opening and not the queue before it.
                async with self._slot():
                    with _bounded(self.limits.open_timeout):
                        for source in sources:
                            links[source.spec.name] = await source.open(seed)
                        session = Session(session_id or uuid.uuid4().hex, links, tools, self)
                        await session.initialize(configs, self.limits.open_timeout)
                yield session
            finally:
                await self._end(session, links)

    @asynccontextmanager
    async def template(
        self, configs: Mapping[str, Any], seed: int = 0, tools: Sequence[str] | None = None
    ) -> AsyncIterator[Template]:
        """A session that is initialized once and cloned many times, for the samples of one group."""
        async with self.open(configs, seed=seed, tools=tools) as session:
            yield Template(session, self, configs, tools, await session.settle())

    @asynccontextmanager
    async def _copied(self, origin: Session, seed: int, *, bound: bool) -> AsyncIterator[Session]:
        amount = sum(self._sources[server].bytes() for server in origin._links)
        async with self._admitted(amount):
            links = await origin.copy_links(seed, bound=bound)
            # Its servers know it by the id that they were initialized with.
            session = Session(origin.id, links, origin._visible, self)
            session.init_result = dict(origin.init_result)
            session._owns_resources = False
            try:
                yield session
            finally:
                await self._end(session, links)

    async def _end(self, session: Session | None, links: Mapping[str, Link]) -> None:
        if session is not None:
            await session.close(self.limits.close_timeout)
        else:
            with anyio.CancelScope(shield=True):
                for link in links.values():
                    await link.close()

    def _admitted(self, amount: int):
        return self.room.taken(amount, self.limits.room_timeout)

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        """One of the places for sessions that run."""
        try:
            with anyio.fail_after(self.limits.queue_timeout):
                await self._runnable.acquire()
        except TimeoutError:
            raise HostFull(
                f"no place to run within {self.limits.queue_timeout:g} s: {self.limits.runnable} sessions are in calls"
            ) from None
        try:
            yield
        finally:
            self._runnable.release()

    @asynccontextmanager
    async def _running(self, link: Link) -> AsyncIterator[None]:
        """A place to run for a link that has a process here; a remote server takes none."""
        if isinstance(link, ProcessLink):
            async with self._slot():
                yield
        else:
            yield

    async def _source(self, server: str) -> Source:
        if server not in self.servers:
            raise SessionError(
                f"no server {server!r}; the servers file has {', '.join(self.servers) or 'none'}", server=server
            )
        async with self._starting[server]:
            source = self._sources.get(server)
            if source is not None and source.broken:
                # Its processes ended under us, and every session with them; the server itself may well be sound.
                del self._sources[server]
                await source.close()
                source = None
            if source is None:
                source = await start_source(self.servers[server], self.limits, self._tasks)
                self._sources[server] = source
            return source


@contextmanager
def _bounded(seconds: float) -> Iterator[None]:
    """Opening as a whole, as a named outcome."""
    try:
        with anyio.fail_after(seconds):
            yield
    except TimeoutError as error:
        raise SessionTimeout(f"the session was not open within {seconds:g} s") from error
