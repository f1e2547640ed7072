"""A session over one or more servers, and templates that sessions are cloned from.

Invariant: calls of a session run one at a time, in the order of asking; after its end, or an error, it answers nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio

from rollout_engine.sessions import jsontext
from rollout_engine.sessions.errors import InitFailed, SessionClosed, SessionError, UnknownTool
from rollout_engine.sessions.links import Link
from rollout_engine.sessions.results import CallResult, ToolSpec, Usage

RESERVED = "__reserved__"
INIT, EFFECTS, TEARDOWN = RESERVED + "init", RESERVED + "geteffects", RESERVED + "teardown"

Slot = Callable[[], AbstractAsyncContextManager[None]]


class Session:
    """Made by :meth:`SessionHost.open`, :meth:`Template.clone` and :meth:`branch`.

    ``tools``: what the agent may see, later servers winning a clash of names; ``missing``: asked-for tools that no
    server has; ``usage``: by server, once the session is closed; ``ranking``: whose knowledge search the servers have,
    where whoever opened it is told.
    """

    ranking: str | None = None

    def __init__(self, session_id: str, links: Mapping[str, Link], visible: Sequence[str] | None, host: Any):
        self.id = session_id
        self.init_result: dict[str, Any] = {}
        self.usage: dict[str, Usage] = {}
        self._links = dict(links)
        self._visible = visible
        self._host = host
        self._lock = anyio.Lock()
        self._closed = False
        self._owns_resources = True
        by_name = {name: tool for link in self._links.values() for name, tool in link.tools.items()}
        self._by_name = {
            name: tool
            for name, tool in by_name.items()
            if not name.startswith(RESERVED) and (visible is None or name in visible)
        }
        self.tools: list[ToolSpec] = list(self._by_name.values())
        self.missing = tuple(name for name in visible or () if name not in self._by_name)

    async def call(self, tool_name: str, arguments: Mapping[str, Any], timeout: float | None = None) -> CallResult:
        """Call a visible tool. ``timeout`` (s) counts from when the call runs.

        Raises UnknownTool, or another SessionError, after which the session is dead.
        """
        tool = self._by_name.get(tool_name)
        if tool is None:
            raise UnknownTool(f"no server of this session shows a tool {tool_name!r}")
        return await self._call(tool.server, tool_name, arguments, timeout)

    async def call_on(
        self, server: str, tool_name: str, arguments: Mapping[str, Any], timeout: float | None = None
    ) -> CallResult:
        """Call any tool of a server, hidden and reserved ones too."""
        if server not in self._links:
            raise UnknownTool(f"this session has no server {server!r}; it has {', '.join(self._links)}", server=server)
        if tool_name not in self._links[server].tools:
            raise UnknownTool(f"server {server} has no tool {tool_name!r}", server=server)
        return await self._call(server, tool_name, arguments, timeout)

    async def effects(self, timeout: float | None = None) -> dict[str, Any]:
        """What each server says that the session has done; an empty object of a server that says nothing."""
        told = await self.told_effects(timeout)
        return {server: {} if result is None else _object(result, server, EFFECTS) for server, result in told.items()}

    async def told_effects(self, timeout: float | None = None) -> dict[str, CallResult | None]:
        """As :meth:`effects`, as the servers wrote it: for those who only pass it on."""
        return {server: await self._reserved(server, EFFECTS, {}, timeout) for server in self._links}

    @asynccontextmanager
    async def branch(self, seed: int = 0) -> AsyncIterator[Session]:
        """Another session with the state that this one has now; both go on apart.

        Resources outside the servers' processes (files, databases) stay shared, so only this session tears down.

        Raises CannotBranch where a server's transport doesn't allow it.
        """
        async with self._host._copied(self, seed, bound=False) as other:
            yield other

    async def initialize(self, configs: Mapping[str, Any], timeout: float) -> None:
        """Call every server's init tool, in the caller's place to run. Raises InitFailed or another SessionError."""
        for server, config in configs.items():
            self.init_result[server] = {}
            link = self._links[server]
            if INIT in link.tools:
                result = await link.call(INIT, self._arguments(server, INIT, {"config": config}), timeout)
                self.init_result[server] = _init_result(result, server)

    async def copy_links(self, seed: int, *, bound: bool) -> dict[str, Link]:
        async with self._lock:
            self._open()
            copies: dict[str, Link] = {}
            try:
                for server, link in self._links.items():
                    async with self._host._running(link):
                        copies[server] = await link.copy(seed, bound=bound)
            except BaseException:
                with anyio.CancelScope(shield=True):
                    for copy in copies.values():
                        await copy.close()
                raise
            return copies

    async def settle(self) -> str:
        """Make ready for many copies. Why it can't be copied, or nothing."""
        return "; ".join([reason for link in self._links.values() if (reason := await link.settle())])

    async def close(self, timeout: float) -> None:
        """Tear down what is left and end every process. Never raises."""
        if self._closed:
            return
        self._closed = True
        with anyio.CancelScope(shield=True):
            for server, link in self._links.items():
                if self._owns_resources and TEARDOWN in link.tools:
                    try:
                        await link.call(TEARDOWN, self._arguments(server, TEARDOWN, {}), timeout)
                    except SessionError:
                        pass  # it is ended below in any case
                self.usage[server] = await link.close()

    async def _reserved(
        self, server: str, tool: str, arguments: Mapping[str, Any], timeout: float | None
    ) -> CallResult | None:
        if tool not in self._links[server].tools:
            return None
        return await self._call(server, tool, self._arguments(server, tool, arguments), timeout)

    def _arguments(self, server: str, tool: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        properties = self._links[server].tools[tool].input_schema.get("properties") or {}
        return {**arguments, "session_id": self.id} if "session_id" in properties else arguments

    async def _call(self, server: str, tool: str, arguments: Mapping[str, Any], timeout: float | None) -> CallResult:
        async with self._lock:
            self._open()
            link = self._links[server]
            async with self._host._running(link):
                return await link.call(tool, arguments, timeout or self._host.limits.call_timeout)

    def _open(self) -> None:
        if self._closed:
            raise SessionClosed("this session is closed")


class Template:
    """A session that is never called, only copied. ``reason``: why sessions are opened afresh instead, or nothing."""

    def __init__(
        self, session: Session, host: Any, configs: Mapping[str, Any], tools: Sequence[str] | None, reason: str
    ):
        self._session, self._host, self._configs, self._tools = session, host, configs, tools
        self.reason = reason

    @property
    def init_result(self) -> dict[str, Any]:
        return self._session.init_result

    @property
    def tools(self) -> list[ToolSpec]:
        return self._session.tools

    @asynccontextmanager
    async def clone(self, seed: int = 0) -> AsyncIterator[Session]:
        """A session in the template's state. Raises SessionError."""
        if self.reason:
            async with self._host.open(self._configs, seed=seed, tools=self._tools) as session:
                yield session
        else:
            async with self._host._copied(self._session, seed, bound=True) as session:
                yield session


def _init_result(result: CallResult, server: str) -> dict[str, Any]:
    """``{}`` or ``{"status": "ok", ...}`` is a success, as in the public proxy."""
    try:
        answer = jsontext.read_text(result.text)
    except ValueError:
        answer = None
    if not result.is_error and isinstance(answer, dict) and (not answer or answer.pop("status", None) == "ok"):
        return answer
    raise InitFailed(f"server {server} refused its init: {result.text[:2000]}", server=server)


def _object(result: CallResult, server: str, tool: str) -> dict[str, Any]:
    try:
        answer = jsontext.read_text(result.text)
    except ValueError:
        answer = None
    if result.is_error or not isinstance(answer, dict):
        raise SessionError(
            f"server {server}: {tool} did not answer with an object: {result.text[:2000]}", server=server
        )
    return answer
