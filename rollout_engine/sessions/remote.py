"""Servers that run elsewhere, over HTTP, by the MCP SDK's client. They isolate their sessions themselves.

Invariant: a remote session lives in one task of the host, which enters and leaves the SDK's client; a fault of it ends
that session and nothing else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
from anyio.abc import TaskGroup, TaskStatus

from rollout_engine.sessions import jsontext
from rollout_engine.sessions.errors import (
    CannotBranch,
    ResultTooLarge,
    ServerStartFailed,
    SessionClosed,
    SessionDied,
    SessionError,
    SessionTimeout,
)
from rollout_engine.sessions.limits import HostLimits
from rollout_engine.sessions.results import CallResult, Mode, ToolSpec, Usage, call_result, unsendable
from rollout_engine.sessions.servers import ServerSpec

LOST = (-32000, -32001)
"""Codes of errors that the SDK makes itself: the connection closed, no answer."""
FAILED = "Server returned an error response"
"""What the SDK says of an HTTP status that is an error."""
ESCAPED = 8
"""A text as JSON in an event may take so many times its size."""
ELSEWHERE = "its state is on another machine"


@dataclass(eq=False)
class _Request:
    tool: str
    arguments: Mapping[str, Any]
    done: anyio.Event = field(default_factory=anyio.Event)
    result: CallResult | None = None


class RemoteSource:
    """A session is a connection to the endpoint."""

    def __init__(self, spec: ServerSpec, limits: HostLimits):
        self.spec, self.limits = spec, limits
        self.mode = Mode("remote", f"{spec.endpoint} over {spec.transport}", note=ELSEWHERE)
        self.tools: Mapping[str, ToolSpec] = {}
        self.broken = False
        self._tasks: TaskGroup | None = None

    async def start(self, tasks: TaskGroup) -> None:
        """Connect once and list the tools. Raises SessionError."""
        self._tasks = tasks
        link = await self.open(0)
        self.tools = link.tools
        await link.close()

    async def open(self, seed: int) -> RemoteLink:
        link = RemoteLink(self.spec, self.limits)
        try:
            with anyio.fail_after(self.limits.start_timeout):
                await self._tasks.start(link.run)
        except TimeoutError as error:
            raise ServerStartFailed(
                f"server {self.server_at()} did not answer within {self.limits.start_timeout:g} s",
                server=self.spec.name,
            ) from error
        return link

    def server_at(self) -> str:
        return f"{self.spec.name} at {self.spec.endpoint}"

    def bytes(self) -> int:
        return 0

    async def close(self) -> None:
        """Nothing of it is kept between sessions."""


class RemoteLink:
    """One connection. ``run`` is its task."""

    def __init__(self, spec: ServerSpec, limits: HostLimits):
        self.server = spec.name
        self.tools: Mapping[str, ToolSpec] = {}
        self._spec, self._limits = spec, limits
        self._send, self._receive = anyio.create_memory_object_stream[_Request](0)
        self._scope = anyio.CancelScope()
        self._ended = anyio.Event()
        self._fault: SessionError | None = None
        self._pending: _Request | None = None

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Connect, say so, and carry out calls until the link is closed.

        Raises ServerStartFailed where it does not come to be connected; never raises afterwards.
        """
        connected = False
        try:
            with self._scope:
                async with connect(self._spec, self._limits) as client:
                    self.tools = await _tools(client, self.server)
                    connected = True
                    task_status.started()
                    async with self._receive:
                        async for request in self._receive:
                            self._pending = request
                            request.result = await _call(client, request)
                            request.done.set()
        except Exception as error:
            message = f"server {self.server} at {self._spec.endpoint}: {_innermost(error)}"
            if not connected:
                raise ServerStartFailed(message, server=self.server) from error
            self._fault = SessionDied(message, server=self.server)
        finally:
            self._ended.set()
            if self._pending is not None:
                self._pending.done.set()

    async def call(self, tool: str, arguments: Mapping[str, Any], timeout: float) -> CallResult:
        if self._fault is not None or self._ended.is_set():
            raise SessionClosed(f"this session ended before: {self._fault or 'closed'}", server=self.server)
        try:
            jsontext.write(arguments)
        except ValueError as error:
            return unsendable(error)
        request = _Request(tool, arguments)
        try:
            with anyio.fail_after(timeout):
                await self._send.send(request)
                await request.done.wait()
        except TimeoutError as error:
            self._scope.cancel()
            self._fault = SessionTimeout(
                f"server {self.server} did not answer tool {tool} within {timeout:g} s", server=self.server
            )
            raise self._fault from error
        except anyio.BrokenResourceError as error:
            raise self._fault or SessionDied(f"server {self.server} ended", server=self.server) from error
        except BaseException:
            self._scope.cancel()
            raise
        if request.result is None:
            raise self._fault or SessionDied(f"server {self.server} ended in tool {tool}", server=self.server)
        if sum(len(str(block.get("text") or block.get("data") or "")) for block in request.result.content) > (
            self._limits.result_bytes
        ):
            self._scope.cancel()
            self._fault = ResultTooLarge(
                f"server {self.server} answered tool {tool} with more than {self._limits.result_bytes} bytes",
                server=self.server,
            )
            raise self._fault
        return request.result

    async def settle(self) -> str:
        return ELSEWHERE

    async def copy(self, seed: int, *, bound: bool) -> RemoteLink:
        raise CannotBranch(f"server {self.server} can't be cloned: {ELSEWHERE}", server=self.server)

    async def close(self) -> Usage:
        self._send.close()
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(self._limits.close_timeout):
                await self._ended.wait()
            self._scope.cancel()
            await self._ended.wait()
        return Usage()


@asynccontextmanager
async def connect(spec: ServerSpec, limits: HostLimits) -> AsyncIterator[Any]:
    """An initialized client session of the SDK, which is imported only now: it is large and few need it."""
    import httpx2
    from mcp.client.session import ClientSession
    from mcp.client.sse import sse_client
    from mcp.client.streamable_http import streamable_http_client

    headers = dict(spec.headers)
    if spec.transport == "sse":
        async with sse_client(spec.endpoint, headers, spec.timeout, limits.call_timeout) as streams:
            async with ClientSession(*streams[:2]) as client:
                await client.initialize()
                yield client
    else:
        timeout = httpx2.Timeout(spec.timeout, read=max(spec.timeout, limits.call_timeout))
        async with httpx2.AsyncClient(headers=headers, timeout=timeout) as http:
            options = {"http_client": http, "max_sse_event_size": ESCAPED * limits.result_bytes}
            async with streamable_http_client(spec.endpoint, **options) as streams:
                async with ClientSession(*streams[:2]) as client:
                    await client.initialize()
                    yield client


async def _tools(client: Any, server: str) -> dict[str, ToolSpec]:
    tools: dict[str, ToolSpec] = {}
    cursor = None
    while True:
        page = await client.list_tools(cursor=cursor) if cursor else await client.list_tools()
        for tool in page.model_dump(by_alias=True, mode="json")["tools"]:
            tools[tool["name"]] = ToolSpec(tool["name"], tool.get("description") or "", tool["inputSchema"], server)
        cursor = page.model_dump(by_alias=True).get("nextCursor")
        if not cursor:
            return tools


async def _call(client: Any, request: _Request) -> CallResult:
    from mcp import MCPError

    try:
        answer = await client.call_tool(request.tool, dict(request.arguments))
    except MCPError as error:
        if error.error.code in LOST or error.error.message == FAILED:
            raise
        # The server declined this call and lives: the caller's doing, as with a tool's own error.
        return CallResult(str(error), [{"type": "text", "text": str(error)}], is_error=True)
    return call_result(answer.model_dump(by_alias=True, mode="json", exclude_none=True))


def _innermost(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
