"""The sessions that a proxy holds, by the ids that its clients chose.

Invariant: each session lives in one task, which opened it and closes it; an id that has been destroyed is free at
once, and what was opened under it is closed when :meth:`Registry.destroy` returns.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from rollout_engine.sessions.errors import HostFull, SessionError, SessionTimeout
from rollout_engine.sessions.opening import ServesSessions
from rollout_engine.sessions.proxy.held import HeldSession
from rollout_engine.sessions.proxy.messages import ProxyError, SessionCreate
from rollout_engine.sessions.proxy.schemas import Described

FULL = 429
"""Of a host without room: the public client waits and asks again."""
RETRY_AFTER = {"retry-after": "2"}
COLLECT_EVERY = 60.0


class Registry:
    """Sessions of ``host`` by id."""

    def __init__(self, host: ServesSessions, nursery: trio.Nursery):
        self._host = host
        self._nursery = nursery
        self._sessions: dict[str, HeldSession] = {}
        self._described = Described()

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, session_id: str) -> HeldSession:
        """A session that can be used. Raises ProxyError."""
        held = self._sessions.get(session_id)
        if held is None or not held.opened:
            raise ProxyError("Session does not exist")
        return held

    async def create(self, asked: SessionCreate) -> dict[str, Any]:
        """Open a session; its servers' init results by server. Raises ProxyError."""
        if asked.session_id in self._sessions:
            raise ProxyError("Session already exists")
        for server in asked.server_config:
            if server not in self._host.servers:
                raise ProxyError(f"Server {server} does not exist")
        held = self._sessions[asked.session_id] = HeldSession(asked, self._described)
        try:
            with trio.fail_after(asked.open_timeout):
                return await self._nursery.start(held.hold, self._opening(asked))
        except HostFull as error:
            self._forget(held)
            raise ProxyError.of(error, FULL, RETRY_AFTER) from error
        except SessionError as error:
            self._forget(held)
            raise ProxyError.of(error) from error
        except trio.TooSlowError:
            self._forget(held)
            raise ProxyError(
                f"The session was not open after {asked.open_timeout} seconds", kind=SessionTimeout.kind
            ) from None
        except BaseException:
            self._forget(held)
            raise

    async def destroy(self, session_id: str) -> None:
        """Close a session, or end its opening. Raises ProxyError."""
        held = self._sessions.get(session_id)
        if held is None:
            raise ProxyError("Session does not exist")
        self._forget(held)
        await held.closed.wait()

    async def destroy_all(self) -> None:
        await self._close(list(self._sessions.values()))

    async def collect(self, minutes: float) -> list[str]:
        """Destroy the sessions that have been idle for so long; their ids."""
        idle = [held for held in self._sessions.values() if held.idle_for() > 60 * minutes]
        await self._close(idle)
        return [held.id for held in idle]

    def _opening(self, asked: SessionCreate):
        seed = secrets.randbits(63) if asked.seed is None else asked.seed
        tools, session_id = asked.available_tools, asked.session_id
        return self._host.open(asked.server_config, seed=seed, tools=tools, session_id=session_id)

    async def _close(self, sessions: list[HeldSession]) -> None:
        for held in sessions:
            self._forget(held)
        for held in sessions:
            await held.closed.wait()

    def _forget(self, held: HeldSession) -> None:
        if self._sessions.get(held.id) is held:
            del self._sessions[held.id]
        held.end("it was destroyed")


@asynccontextmanager
async def open_registry(host: ServesSessions, gc_minutes: float | None = None) -> AsyncIterator[Registry]:
    """A registry whose sessions are closed when the block is left. ``gc_minutes``: collect idle ones meanwhile."""
    async with trio.open_nursery() as nursery:
        registry = Registry(host, nursery)
        async with trio.open_nursery() as collecting:
            if gc_minutes is not None:
                collecting.start_soon(_collect, registry, gc_minutes)
            yield registry
            collecting.cancel_scope.cancel()
        await registry.destroy_all()


async def _collect(registry: Registry, minutes: float) -> None:
    while True:
        await trio.sleep(COLLECT_EVERY)
        await registry.collect(minutes)
