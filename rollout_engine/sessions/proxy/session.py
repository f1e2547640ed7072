"""One session at a Session Proxy elsewhere, used as a :class:`~rollout_engine.sessions.session.Session` is.

Invariant: requests go one at a time, each once; a session whose last request has no known outcome answers nothing more.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

import anyio
import msgspec

from rollout_engine.sessions import jsontext
from rollout_engine.sessions.errors import (
    CannotBranch,
    SessionClosed,
    SessionDied,
    SessionError,
    SessionTimeout,
    UnknownTool,
)
from rollout_engine.sessions.proxy.held import ANY_TOOL, TIMED_OUT
from rollout_engine.sessions.results import CallResult, ToolSpec, Usage, unsendable

KINDS = {kind.kind: kind for kind in SessionError.__subclasses__()}
Value = TypeVar("Value")
Envelope = TypeVar("Envelope", bound=msgspec.Struct)
NO_TOOL = re.compile(r"Tool .+ does not exist", re.DOTALL)


class _Value(msgspec.Struct, Generic[Value]):
    value: Value


class _Envelope(msgspec.Struct, Generic[Value]):
    content: _Value[Value]


class _Tool(msgspec.Struct):
    inputSchema: dict[str, Any]
    description: str | None = None
    server: str | None = None


class _ToolsByName(msgspec.Struct):
    tools: dict[str, _Tool]


_Tools = _Envelope[_ToolsByName]
_Object = _Envelope[dict[str, Any]]


class _Called(_Envelope[str]):
    isError: bool = False
    blocks: list[dict[str, Any]] | None = None


class Created(_Envelope[dict[str, Any]]):
    """What is said of a new session: init results by server; ``ranking`` is ours."""

    ranking: str | None = None


class ProxySession:
    """Made by :meth:`ProxyHost.open`; used as a :class:`~rollout_engine.sessions.session.Session` is.

    ``ranking``: whose knowledge search its servers have, where the proxy tells.
    """

    missing: tuple[str, ...] = ()

    def __init__(self, host: Any, session_id: str, servers: list[str], created: Created):
        self.id = session_id
        self.init_result: dict[str, Any] = created.content.value
        self.ranking: str | None = created.ranking
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
        return (await self._ask("/get_effects", {}, timeout, _Object)).content.value

    @asynccontextmanager
    async def branch(self, seed: int = 0) -> AsyncIterator[ProxySession]:
        raise CannotBranch("a Session Proxy's protocol has no branching; use a SessionHost in the process")
        yield  # what makes it a generator

    async def _call(self, name: str, arguments: Mapping[str, Any], timeout: float | None) -> CallResult:
        try:
            jsontext.write(arguments)
        except ValueError as error:
            return unsendable(error)
        body = {"tool_name": name, "arguments": arguments, "call_id": uuid.uuid4().hex}
        reply = await self._ask("/call_tool", body, timeout, _Called)
        text = reply.content.value
        content = [{"type": "text", "text": text}] if reply.blocks is None else reply.blocks
        return CallResult(text, content, reply.isError)

    async def _list_tools(self) -> None:
        listed = await self._ask("/list_tools", {}, None, _Tools)
        only = self._servers[0] if len(self._servers) == 1 else ""
        self.tools = [
            ToolSpec(name, tool.description or "", tool.inputSchema, only if tool.server is None else tool.server)
            for name, tool in listed.content.value.tools.items()
        ]

    async def _ask(self, path: str, body: Mapping[str, Any], timeout: float | None, kind: type[Envelope]) -> Envelope:
        bound = self._host.limits.call + self._host.limits.margin if timeout is None else timeout
        async with self._lock:
            if self._ended:
                raise SessionClosed(f"this session has ended: {self._ended}")
            try:
                status, reply = await self._host._post(path, {"session_id": self.id, **body}, bound, SessionDied)
                if status != 200:
                    raise fault_of(f"{self._host.url}{path}", status, reply, SessionDied)
                return read_reply(f"{self._host.url}{path}", reply, kind)
            except UnknownTool:
                raise
            except SessionError as error:
                self._ended = str(error)
                raise
            except BaseException:
                self._ended = f"{path} was abandoned"
                raise


def read_reply(where: str, envelope: Mapping[str, Any], kind: type[Envelope]) -> Envelope:
    """A success as ``kind``. Raises SessionDied where a Session Proxy would not have said it."""
    try:
        return msgspec.convert(envelope, kind)
    except msgspec.ValidationError as error:
        raise SessionDied(f"{where}: no answer of a Session Proxy: {error}") from error


def fault_of(where: str, status: int, envelope: Mapping[str, Any], default: type[SessionError]) -> SessionError:
    """What a refusal means: by its kind, which ours tell, else by what the public proxy says."""
    told = str(envelope["content"].get("value") or f"HTTP {status}")
    kind = KINDS.get(envelope.get("kind"))
    if kind is None and status == TIMED_OUT:
        kind = SessionTimeout
    if kind is None and NO_TOOL.fullmatch(told):
        kind = UnknownTool
    return (kind or default)(f"{where}: {told}")
