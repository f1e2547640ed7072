"""What is asked of whoever opens sessions, whichever way: a host of our own, a proxy by URL, one that reuses worlds.

Invariant: :class:`~rollout_engine.sessions.host.SessionHost`, :class:`~rollout_engine.sessions.proxy.client.ProxyHost`
and :class:`~rollout_engine.sessions.proxy.reuse.ReusingHost` can stand in for one another wherever this is asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from rollout_engine.sessions.results import CallResult, ToolSpec, Usage


class OpenSession(Protocol):
    """A session while it is open; see :class:`~rollout_engine.sessions.session.Session`."""

    id: str
    tools: list[ToolSpec]
    missing: tuple[str, ...]
    init_result: dict[str, Any]
    usage: dict[str, Usage]
    ranking: str | None

    async def call(self, tool_name: str, arguments: Mapping[str, Any], timeout: float | None = None) -> CallResult: ...

    async def call_on(
        self, server: str, tool_name: str, arguments: Mapping[str, Any], timeout: float | None = None
    ) -> CallResult: ...

    async def effects(self, timeout: float | None = None) -> dict[str, Any]: ...

    def branch(self, seed: int = 0) -> AbstractAsyncContextManager[OpenSession]: ...


class OpensSessions(Protocol):
    """Opens sessions, each for the time of a block."""

    def open(
        self,
        configs: Mapping[str, Any],
        seed: int = 0,
        tools: Sequence[str] | None = None,
        session_id: str | None = None,
    ) -> AbstractAsyncContextManager[OpenSession]:
        """Raises HostFull, InitFailed or another SessionError."""
        ...


class ServesSessions(OpensSessions, Protocol):
    """Opens sessions over servers that are known by name."""

    servers: Mapping[str, Any]
