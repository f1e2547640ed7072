"""A session that the proxy holds for its clients, from its creation to its destruction.

Invariant: its calls are carried out one at a time, in the order they came, and none twice. A call whose outcome is
unknown (it timed out, its server died) ends the session, and every later call is told why.

The public client sends the same body again after a 504 and, by default, after a lost connection. After a 504 the
session has ended, so nothing is carried out. After a lost connection the reply that nobody read is kept, and the same
body, if it is what comes next, gets it.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, TypeVar

import msgspec
import trio

from rollout_engine.sessions import jsontext
from rollout_engine.sessions.errors import SessionClosed, SessionError, SessionTimeout, UnknownTool
from rollout_engine.sessions.proxy.messages import (
    CallTool,
    ProxyError,
    Reply,
    SessionCreate,
    error_reply,
    object_text_reply,
    text_reply,
)
from rollout_engine.sessions.proxy.schemas import Described
from rollout_engine.sessions.results import CallResult

ANY_TOOL = "__reserved__server_tool"
PROXY_INFO = "__reserved__proxy_info"
KEPT_REPLIES = 64
"""Of the calls with an id, a session."""
TIMED_OUT = 504

Value = TypeVar("Value")


class ServerTool(msgspec.Struct):
    """The arguments of ``ANY_TOOL``, which reaches any tool of any server of a session, hidden ones too."""

    server_name: str
    tool_name: str
    arguments: dict[str, Any]


class HeldSession:
    """One task holds it open (:meth:`hold`); clients' requests use it meanwhile."""

    def __init__(self, asked: SessionCreate, described: Described):
        self.id = asked.session_id
        self.info: dict[str, Any] = {}
        self.closed = trio.Event()
        """Set once everything of it is gone."""
        self._asked = asked
        self._described = described
        self._session: Any = None
        self._ended: str | None = None
        self._end = trio.Event()
        self._turn = trio.StrictFIFOLock()
        self._running: trio.CancelScope | None = None
        self._last_used = trio.current_time()
        self._log: list[dict[str, Any]] = []
        self._replies: OrderedDict[str, Reply] = OrderedDict()
        self._unread: tuple[bytes, Reply] | None = None

    async def hold(
        self,
        opening: AbstractAsyncContextManager[Any],
        *,
        task_status: trio.TaskStatus[dict[str, Any]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Enter ``opening``, report the servers' init results as started, and leave when the session ends.

        Raises SessionError where it didn't open; how it fares after that is for its clients to hear.
        """
        started = False
        try:
            with trio.CancelScope() as self._running:
                async with opening as self._session:
                    self._running = None
                    if self._session.missing:
                        raise UnknownTool(f"Tool {self._session.missing[0]} does not exist")
                    self._last_used = trio.current_time()
                    task_status.started(self._session.init_result)
                    started = True
                    await self._end.wait()
        except SessionError as error:
            if not started:
                raise
            self.end(str(error))
        finally:
            self.closed.set()
        if not started:
            raise SessionClosed(f"The session did not open: {self._ended}")

    def end(self, why: str) -> None:
        """Have it closed, whatever it is doing. The first reason is the one that is told."""
        if self._ended is None:
            self._ended = why
        if self._running is not None:
            self._running.cancel()
        self._end.set()

    @property
    def opened(self) -> bool:
        return self._session is not None

    def idle_for(self) -> float:
        """Seconds since it was last used; 0 while it is in use or being opened."""
        if self._session is None or self._turn.locked():
            return 0.0
        return trio.current_time() - self._last_used

    def tools(self) -> dict[str, dict[str, Any]]:
        """The visible tools by name, as the protocol lists them. Raises SchemaError."""
        return {tool.name: self._described(tool) for tool in self._session.tools}

    async def call_tool(self, call: CallTool, body: bytes, abandoned: Callable[[], bool]) -> Reply:
        """Carry out a call, unless it has been already; its reply. ``abandoned`` says whether nobody will read it."""
        async with self._turn:
            known = self._known(call.call_id, body)
            if known is not None:
                return known
            try:
                reply = _call_reply(await self._call(call.tool_name, call.arguments))
            except ProxyError as error:
                reply = error_reply(error)
            self._unread = (body, reply) if abandoned() else None
            if call.call_id is not None:
                self._replies[call.call_id] = reply
                if len(self._replies) > KEPT_REPLIES:
                    self._replies.popitem(last=False)
            return reply

    async def call(self, name: str, arguments: dict[str, Any]) -> CallResult:
        """Carry out a call. Raises ProxyError."""
        async with self._turn:
            self._unread = None
            return await self._call(name, arguments)

    async def effects(self) -> Reply:
        """What each server says, as it says it: effects may be megabytes, and are only passed on."""
        async with self._turn:
            work = partial(self._session.told_effects, timeout=self._asked.timeout)
            told = await self._bounded("get_effects", work)
        texts = {server: "{}" if result is None else _object_text(server, result) for server, result in told.items()}
        if self._asked.geteffects_proxy_info:
            texts[PROXY_INFO] = json.dumps({"tool_calls": self._log})
        return object_text_reply(texts)

    async def _call(self, name: str, arguments: dict[str, Any]) -> CallResult:
        work = self._to_any_tool(arguments) if name == ANY_TOOL else self._to_visible_tool(name, arguments)
        result = await self._bounded("Tool call", work)
        if self._asked.always_json_output:
            result = _as_json(result)
        if self._asked.geteffects_proxy_info:
            self._log.append({"tool_name": name, "arguments": arguments, "response": result.text})
        return result

    def _to_visible_tool(self, name: str, arguments: dict[str, Any]) -> Callable[[], Awaitable[CallResult]]:
        if all(tool.name != name for tool in self._session.tools):
            raise ProxyError(f"Tool {name} does not exist", kind=UnknownTool.kind)
        return partial(self._session.call, name, arguments, timeout=self._asked.timeout)

    def _to_any_tool(self, arguments: dict[str, Any]) -> Callable[[], Awaitable[CallResult]]:
        try:
            asked = msgspec.convert(arguments, ServerTool)
        except msgspec.ValidationError as error:
            raise ProxyError(f"Invalid input: {ANY_TOOL}: {error}") from None
        timeout = self._asked.timeout
        return partial(self._session.call_on, asked.server_name, asked.tool_name, asked.arguments, timeout=timeout)

    async def _bounded(self, what: str, work: Callable[[], Awaitable[Value]]) -> Value:
        """Do ``work`` on the session, in one's turn. Raises ProxyError."""
        if self._ended is not None:
            raise ProxyError(f"The session has ended: {self._ended}", kind=SessionClosed.kind)
        with trio.CancelScope() as self._running:
            try:
                return await work()
            except UnknownTool as error:
                raise ProxyError.of(error) from error
            except SessionTimeout as error:
                told = f"{what} timed out after {self._asked.timeout} seconds"
                self.end(f"{told}; whether it was carried out is unknown, and it is not carried out again")
                raise ProxyError(told, TIMED_OUT, kind=error.kind) from error
            except SessionError as error:
                self.end(str(error))
                raise ProxyError.of(error) from error
            finally:
                self._running = None
                self._last_used = trio.current_time()
        raise ProxyError(f"The session has ended: {self._ended}", kind=SessionClosed.kind)

    def _known(self, call_id: str | None, body: bytes) -> Reply | None:
        if call_id is not None and call_id in self._replies:
            return self._replies[call_id]
        unread, self._unread = self._unread, None
        return unread[1] if unread is not None and unread[0] == body else None


def _call_reply(result: CallResult) -> Reply:
    more: dict[str, Any] = {"isError": result.is_error}
    if [block.get("type") for block in result.content] != ["text"]:
        more["blocks"] = result.content
    return text_reply(result.text, **more)


def _object_text(server: str, result: CallResult) -> str:
    """JSON of an object. Raises ProxyError where a server's effects are none."""
    try:
        if not result.is_error:
            msgspec.json.decode(result.text, type=dict[str, msgspec.Raw])
            return result.text
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        # Python's own reader takes more than JSON has (NaN), and its writer can write all of it.
        try:
            found = jsontext.read_unchanged(result.text)
        except ValueError:
            found = None
        if isinstance(found, dict):
            return json.dumps(found)
    raise ProxyError(f"server {server}: its effects are no JSON object: {result.text[:2000]}")


def _as_json(result: CallResult) -> CallResult:
    """The result as a client that reads JSON only wants it: text that is none is put into an object."""
    if not result.content or "text" not in result.content[0]:
        return result
    try:
        parsed = jsontext.read_unchanged(result.text)
    except ValueError:
        parsed = {"result": result.text}
        text = json.dumps(parsed)
        return CallResult(text, [{"type": "text", "text": text}], result.is_error, parsed)
    return CallResult(result.text, result.content, result.is_error, parsed)
