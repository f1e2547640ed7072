"""Sessions at a Session Proxy, the public one or ours, by URL: :class:`ProxyHost` is used as a SessionHost is.

Invariant: a call is sent once. Where its outcome isn't known the session has ended, and its place is destroyed. Every
wait is bounded by :class:`ProxyLimits`.

    async with ProxyHost("http://127.0.0.1:7111") as host:
        async with host.open({"bookings": {}}, seed=7, tools=["book"]) as session:
            result = await session.call("book", {"room": 12})
"""

from __future__ import annotations

import json
import re
import ssl
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx

from rollout_engine.sessions.errors import (
    CannotBranch,
    HostFull,
    InitFailed,
    ResultTooLarge,
    ServerStartFailed,
    SessionClosed,
    SessionDied,
    SessionError,
    SessionTimeout,
    UnknownTool,
)
from rollout_engine.sessions.proxy.held import ANY_TOOL, TIMED_OUT
from rollout_engine.sessions.proxy.registry import FULL
from rollout_engine.sessions.results import CallResult, ToolSpec, Usage

UNAUTHORIZED = 401
ASK_AGAIN = (FULL, 503)
"""Of a proxy that has no room: nothing was opened."""
KINDS = {kind.kind: kind for kind in SessionError.__subclasses__()}
NO_TOOL = re.compile(r"Tool .+ does not exist", re.DOTALL)
IDLE = 4.0
"""Seconds that an idle connection is kept: the public proxy's server closes its own after 5, and a request that crosses
the closing is lost with its outcome unknown."""


@dataclass(frozen=True, kw_only=True)
class ProxyLimits:
    """Times in seconds, sizes in bytes."""

    connect: float = 10.0
    open: float = 120.0
    """Waiting for room and opening."""
    again: float = 1.0
    """Between two askings for room."""
    call: float = 60.0
    """A call or effects, where the call doesn't give its own; the proxy is told the same bound."""
    margin: float = 5.0
    """How much later than the proxy's own bound ours is, so that the proxy's answer comes first."""
    close: float = 10.0
    result_bytes: int = 64 * 2**20


class ProxyHost:
    """``async with ProxyHost(url) as host``. ``key`` is sent as a bearer token; ``ca``: trust this certificate file."""

    def __init__(self, url: str, key: str | None = None, *, ca: Path | None = None, limits: ProxyLimits | None = None):
        self.url = url.rstrip("/")
        self.limits = limits or ProxyLimits()
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self._client = httpx.AsyncClient(
            base_url=self.url,
            headers=headers,
            verify=ssl.create_default_context(cafile=ca) if ca is not None else True,
            timeout=httpx.Timeout(None, connect=self.limits.connect),
            limits=httpx.Limits(max_connections=None, keepalive_expiry=IDLE),
        )

    async def __aenter__(self) -> ProxyHost:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._client.__aexit__(*exc)

    @asynccontextmanager
    async def open(
        self,
        configs: Mapping[str, Any],
        seed: int = 0,
        tools: Sequence[str] | None = None,
        session_id: str | None = None,
    ) -> AsyncIterator[ProxySession]:
        """A session over the servers named in ``configs``. ``tools`` None (all of them) needs a proxy of ours, and only
        such a one heeds ``seed``.

        Raises HostFull, ServerStartFailed (no proxy there), InitFailed, SessionTimeout or another SessionError.
        """
        session_id = session_id or uuid.uuid4().hex
        created = False
        try:
            reply = await self._create(session_id, configs, seed, tools)
            created = True
            session = ProxySession(self, session_id, list(configs), reply)
            await session._list_tools()
            yield session
        except SessionTimeout:
            # It may have been opened all the same.
            created = True
            raise
        finally:
            if created:
                await self._destroy(session_id)

    @asynccontextmanager
    async def template(
        self, configs: Mapping[str, Any], seed: int = 0, tools: Sequence[str] | None = None
    ) -> AsyncIterator[ProxyTemplate]:
        """As a SessionHost's. The protocol has no cloning, so every clone is opened afresh."""
        yield ProxyTemplate(self, configs, tools)

    async def _create(
        self, session_id: str, configs: Mapping[str, Any], seed: int, tools: Sequence[str] | None
    ) -> dict[str, Any]:
        body = {
            "session_id": session_id,
            "server_config": configs,
            "available_tools": None if tools is None else list(tools),
            "timeout": self.limits.call,
            "seed": seed,
        }
        deadline = anyio.current_time() + self.limits.open
        while True:
            left = max(deadline - anyio.current_time(), 0.0)
            status, reply = await self._post("/session_create", body, left, ServerStartFailed)
            if status == 200:
                return reply
            fault = _fault(f"{self.url} did not open a session", status, reply, InitFailed)
            if status not in ASK_AGAIN:
                if tools is None:
                    fault.add_note("A public Session Proxy wants the tools named.")
                raise fault
            if anyio.current_time() + self.limits.again >= deadline:
                raise HostFull(f"no room within {self.limits.open:g} s: {fault}")
            await anyio.sleep(self.limits.again)

    async def _destroy(self, session_id: str) -> None:
        """Never raises: what isn't destroyed now is for the proxy to collect."""
        with anyio.CancelScope(shield=True):
            try:
                await self._post("/session_destroy", {"session_id": session_id}, self.limits.close, SessionDied)
            except SessionError:
                pass

    async def _post(
        self, path: str, body: Mapping[str, Any], bound: float, lost: type[SessionError]
    ) -> tuple[int, dict[str, Any]]:
        """Status and envelope. Raises SessionTimeout, ResultTooLarge, or ``lost`` where no answer came."""
        try:
            with anyio.fail_after(bound):
                async with self._client.stream("POST", path, json=body) as reply:
                    content = bytearray()
                    async for part in reply.aiter_bytes():
                        content += part
                        if len(content) > self.limits.result_bytes:
                            limit = self.limits.result_bytes
                            raise ResultTooLarge(f"{self.url}{path}: an answer longer than {limit} bytes")
        except TimeoutError as error:
            raise SessionTimeout(f"{self.url}{path} did not answer within {bound:g} s") from error
        except httpx.HTTPError as error:
            raise lost(f"{self.url}{path}: {type(error).__name__}: {error or 'no answer'}") from error
        if reply.status_code == UNAUTHORIZED:
            raise lost(f"{self.url} refused the key: give the one that it was started with")
        try:
            envelope = json.loads(content)
        except ValueError:
            envelope = None
        if not isinstance(envelope, dict) or not isinstance(envelope.get("content"), dict):
            raise lost(f"{self.url}{path}: HTTP {reply.status_code}, no answer of a Session Proxy: {content[:200]!r}")
        return reply.status_code, envelope


class ProxySession:
    """Made by :meth:`ProxyHost.open`; used as a :class:`~rollout_engine.sessions.session.Session` is.

    ``ranking``: whose knowledge search its servers have, where the proxy tells.
    """

    missing: tuple[str, ...] = ()

    def __init__(self, host: ProxyHost, session_id: str, servers: list[str], created: Mapping[str, Any]):
        self.id = session_id
        self.init_result: dict[str, Any] = created["content"]["value"]
        self.ranking: str | None = created.get("ranking")
        self.tools: list[ToolSpec] = []
        self.usage: dict[str, Usage] = {}
        self._host = host
        self._servers = servers
        self._lock = anyio.Lock()
        self._ended = ""

    async def call(self, tool_name: str, arguments: Mapping[str, Any], timeout: float | None = None) -> CallResult:
        """Call a visible tool. Raises UnknownTool, or another SessionError, after which the session is dead."""
        if all(tool.name != tool_name for tool in self.tools):
            raise UnknownTool(f"no server of this session shows a tool {tool_name!r}")
        return await self._call(tool_name, arguments, timeout)

    async def call_on(
        self, server: str, tool_name: str, arguments: Mapping[str, Any], timeout: float | None = None
    ) -> CallResult:
        """Call any tool of a server, hidden and reserved ones too."""
        if server not in self._servers:
            raise UnknownTool(f"this session has no server {server!r}; it has {', '.join(self._servers)}")
        asked = {"server_name": server, "tool_name": tool_name, "arguments": arguments}
        return await self._call(ANY_TOOL, asked, timeout)

    async def effects(self, timeout: float | None = None) -> dict[str, Any]:
        return (await self._ask("/get_effects", {}, timeout))["content"]["value"]

    @asynccontextmanager
    async def branch(self, seed: int = 0) -> AsyncIterator[ProxySession]:
        raise CannotBranch("a Session Proxy's protocol has no branching; use a SessionHost in the process")
        yield  # what makes it a generator

    async def _call(self, name: str, arguments: Mapping[str, Any], timeout: float | None) -> CallResult:
        body = {"tool_name": name, "arguments": arguments, "call_id": uuid.uuid4().hex}
        reply = await self._ask("/call_tool", body, timeout)
        text = reply["content"]["value"]
        content = reply.get("blocks", [{"type": "text", "text": text}])
        return CallResult(text, content, bool(reply.get("isError")))

    async def _list_tools(self) -> None:
        listed = (await self._ask("/list_tools", {}, None))["content"]["value"]["tools"]
        only = self._servers[0] if len(self._servers) == 1 else ""
        self.tools = [
            ToolSpec(name, tool.get("description") or "", tool["inputSchema"], tool.get("server", only))
            for name, tool in listed.items()
        ]

    async def _ask(self, path: str, body: Mapping[str, Any], timeout: float | None) -> dict[str, Any]:
        bound = self._host.limits.call + self._host.limits.margin if timeout is None else timeout
        async with self._lock:
            if self._ended:
                raise SessionClosed(f"this session has ended: {self._ended}")
            try:
                status, reply = await self._host._post(path, {"session_id": self.id, **body}, bound, SessionDied)
                if status != 200:
                    raise _fault(f"{self._host.url}{path}", status, reply, SessionDied)
            except UnknownTool:
                raise
            except SessionError as error:
                self._ended = str(error)
                raise
            except BaseException:
                self._ended = f"{path} was abandoned"
                raise
        return reply


class ProxyTemplate:
    """As a SessionHost's template, without its savings."""

    reason = "a Session Proxy's protocol has no cloning"

    def __init__(self, host: ProxyHost, configs: Mapping[str, Any], tools: Sequence[str] | None):
        self._host, self._configs, self._tools = host, configs, tools

    @asynccontextmanager
    async def clone(self, seed: int = 0) -> AsyncIterator[ProxySession]:
        async with self._host.open(self._configs, seed=seed, tools=self._tools) as session:
            yield session


def _fault(where: str, status: int, envelope: Mapping[str, Any], default: type[SessionError]) -> SessionError:
    """What a refusal means: by its kind, which ours tell, else by what the public proxy says."""
    told = str(envelope["content"].get("value") or f"HTTP {status}")
    kind = KINDS.get(envelope.get("kind"))
    if kind is None and status == TIMED_OUT:
        kind = SessionTimeout
    if kind is None and NO_TOOL.fullmatch(told):
        kind = UnknownTool
    return (kind or default)(f"{where}: {told}")
