"""One server's part of a session: a process that we hold, spoken to over its wire.

Invariant: an exchange ends in a result or in one named :class:`SessionError`, and after an error the process is dead.
Nothing is ever sent twice.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import anyio

from rollout_engine.sessions.errors import (
    CannotBranch,
    ProtocolViolation,
    ResultTooLarge,
    ServerStartFailed,
    SessionClosed,
    SessionDied,
    SessionError,
    SessionTimeout,
)
from rollout_engine.sessions.processes import ForkFailed, ForkRefused, SessionProcess
from rollout_engine.sessions.results import CallResult, ToolSpec, Usage, call_result, tool_page
from rollout_engine.sessions.wire import Ended, Malformed, Refused, TooLarge, Violation, WireError

PROTOCOL_VERSION = "2025-06-18"
Observe = Callable[[SessionProcess], Awaitable[None]]
SHOWN_CHARACTERS, SHOWN_LINES = 1500, 30
"""Of the end of what a server wrote, in a message."""
CLIENT = {"name": "session-host", "version": "1"}


class Link(Protocol):
    """What a session needs of a server's part of it."""

    server: str
    tools: Mapping[str, ToolSpec]

    async def call(self, tool: str, arguments: Mapping[str, Any], timeout: float) -> CallResult: ...

    async def copy(self, seed: int, *, bound: bool) -> Link:
        """The server as it stands, in a process of its own. Raises CannotBranch."""
        ...

    async def settle(self) -> str:
        """Make ready for many copies. Why :meth:`copy` would raise, or nothing."""
        ...

    async def close(self) -> Usage: ...


class ProcessLink:
    """``tail()`` gives the end of the server's standard error, for messages; ``reason``: why it can't be cloned;
    ``observe`` is shown a sound process before it is ended.
    """

    def __init__(
        self,
        server: str,
        process: SessionProcess,
        tail: Callable[[], str],
        reason: str = "",
        observe: Observe | None = None,
    ):
        self.server = server
        self.tools: Mapping[str, ToolSpec] = {}
        self.process = process
        self._tail = tail
        self._reason = reason
        self._observe = observe
        self._fault: SessionError | None = None

    async def handshake(self, timeout: float) -> None:
        """The protocol's initialize exchange. Raises ServerStartFailed, SessionTimeout, ProtocolViolation."""
        params = {"protocolVersion": PROTOCOL_VERSION, "capabilities": {}, "clientInfo": CLIENT}
        try:
            await self._exchange("the handshake", timeout, lambda: self._initialize(params))
        except SessionDied as error:
            raise ServerStartFailed(str(error), server=self.server) from error
        except Refused as error:
            await self.process.end()
            raise ServerStartFailed(
                f"server {self.server} refused the handshake: {error}", server=self.server
            ) from error

    async def _initialize(self, params: Mapping[str, Any]) -> None:
        await self.process.wire.request("initialize", params)
        await self.process.wire.notify("notifications/initialized")

    async def list_tools(self, timeout: float) -> dict[str, ToolSpec]:
        """Every tool of the server, reserved ones included."""
        try:
            return await self._exchange("listing its tools", timeout, self._pages)
        except Refused as error:
            raise ServerStartFailed(
                f"server {self.server} does not list its tools: {error}", server=self.server
            ) from error

    async def _pages(self) -> dict[str, ToolSpec]:
        tools: dict[str, ToolSpec] = {}
        cursor: str | None = None
        while True:
            answer = await self.process.wire.request("tools/list", {"cursor": cursor} if cursor else {})
            try:
                page, cursor = tool_page(answer, self.server)
            except ValueError as error:
                raise Malformed(str(error)) from error
            tools |= page
            if not cursor:
                return tools

    async def call(self, tool: str, arguments: Mapping[str, Any], timeout: float) -> CallResult:
        params = {"name": tool, "arguments": arguments}
        try:
            return await self._exchange(f"tool {tool}", timeout, lambda: self._called(params))
        except Refused as error:
            # The server declined this call and lives: the caller's doing, as with a tool's own error.
            return CallResult(str(error), [{"type": "text", "text": str(error)}], is_error=True)

    async def _called(self, params: Mapping[str, Any]) -> CallResult:
        answer = await self.process.wire.request("tools/call", params)
        try:
            return call_result(answer)
        except ValueError as error:
            raise Malformed(str(error)) from error

    async def settle(self) -> str:
        if self._reason:
            return self._reason
        self._usable()
        try:
            with anyio.fail_after(self.process.limits.fork_timeout):
                answer, _ = await self.process.wire.control({"settle": True})
        except (WireError, TimeoutError) as error:
            raise await self._broken(SessionDied, f"did not settle: {error}") from error
        return answer.get("refused", "")

    def refuse_copies(self, reason: str) -> None:
        self._reason = reason

    async def copy(self, seed: int, *, bound: bool) -> ProcessLink:
        self._usable()
        if self._reason:
            raise CannotBranch(f"server {self.server} can't be cloned: {self._reason}", server=self.server)
        try:
            process = await self.process.fork(seed, bound=bound)
        except ForkRefused as error:
            raise CannotBranch(f"server {self.server} can't be cloned now: {error}", server=self.server) from error
        except ForkFailed as error:
            raise await self._broken(SessionDied, f"did not fork: {error}") from error
        link = ProcessLink(self.server, process, self._tail, observe=self._observe)
        link.tools = self.tools
        return link

    async def close(self) -> Usage:
        if self._observe is not None and self._fault is None:
            with anyio.CancelScope(shield=True):
                try:
                    await self._observe(self.process)
                except (WireError, TimeoutError):
                    pass  # it has ended by itself, and is ended now in any case
        return await self.process.end()

    def _usable(self) -> None:
        if self._fault is not None:
            raise SessionClosed(f"this session ended before: {self._fault}", server=self.server)

    async def _exchange(self, what: str, timeout: float, exchange: Callable[[], Awaitable[Any]]) -> Any:
        self._usable()
        try:
            with anyio.fail_after(timeout):
                return await exchange()
        except Refused:
            raise
        except TimeoutError as error:
            raise await self._broken(
                SessionTimeout,
                f"did not answer {what} within {timeout:g} s and was killed; raise the limit if it is slow",
            ) from error
        except Ended as error:
            raise await self._broken(SessionDied, f"ended in {what}") from error
        except TooLarge as error:
            raise await self._broken(
                ResultTooLarge, f"answered {what} with {error} and was killed; raise result_bytes if that is right"
            ) from error
        except Violation as error:
            raise await self._broken(
                ProtocolViolation,
                f"wrote to standard output what is not the protocol, in {what}: {error}; "
                "let it write to standard error instead",
            ) from error
        except Malformed as error:
            raise await self._broken(
                ProtocolViolation, f"answered {what} with what the protocol does not have: {error}"
            ) from error
        except WireError as error:
            raise await self._broken(SessionDied, f"{what}: {error}") from error
        except BaseException:
            # Cancelled in mid-call: what the server does with the request is unknown.
            self._fault = SessionClosed(f"cancelled in {what}", server=self.server)
            self.process.kill()
            raise

    async def _broken(self, kind: type[SessionError], what: str) -> SessionError:
        # A process that closed its stream is ending: how it ended is known only if it isn't killed meanwhile.
        await self.process.end(grace=0.2 if kind is SessionDied else 0.0)
        status = self.process.status
        if kind is SessionDied and status is not None:
            what += f" ({_ending(status)})"
        for name, text in (
            ("its standard output beside the protocol", self.process.wire.stray.decode(errors="replace").strip()),
            ("the end of the server's standard error, which all its sessions share", self._tail()),
        ):
            if text:
                what += f"\n  {name}: " + "\n    ".join(text[-SHOWN_CHARACTERS:].splitlines()[-SHOWN_LINES:])
        self._fault = kind(f"server {self.server} {what}", server=self.server)
        return self._fault


def _ending(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return f"killed by {signal.Signals(number).name}"
        except ValueError:  # most of the real-time signals have no name
            return f"killed by signal {number}"
    return f"exit status {os.WEXITSTATUS(status)}"
