"""One stream socket to a server: newline JSON-RPC, and control lines with descriptors for processes that can fork.

Invariant: one exchange at a time, and an exchange that does not end well leaves the wire unusable: the session that
owns it has to be ended, because what the server does with the last request is unknown. No task reads in the background.
"""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import msgspec

from rollout_engine.sessions import jsontext

CHUNK = 1 << 18
STRAY_BYTES = 1 << 16
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602


class WireError(Exception):
    """Why an exchange did not end well."""


class Ended(WireError):
    """The other side closed the stream."""


class TooLarge(WireError):
    """A message longer than the bound."""


class Violation(WireError):
    """Something that is no message of the protocol."""


class Malformed(WireError):
    """A message of the protocol that does not say what the protocol wants said."""


class Refused(Exception):
    """The server answered a request with a JSON-RPC error: a regular end of an exchange.

    So ends a request that can't be written as JSON, too: nothing of it was sent.
    """

    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code = code


class Wire:
    """``max_bytes`` bounds one message. ``greeting`` is what a transport that can fork said of itself, or None."""

    def __init__(self, sock: socket.socket, max_bytes: int, last_id: int = 0):
        sock.setblocking(False)
        self._sock = sock
        self._max = max_bytes
        self._chunks: list[bytes] = []
        self._held = 0
        self._lines: list[bytes] = []
        self._fds: list[int] = []
        self._lock = anyio.Lock()
        self.last_id = last_id
        self.greeting: dict[str, Any] | None = None
        self.stray = b""
        """Whole lines that the server wrote to its standard output beside the protocol (the last of them)."""
        self._stray_bytes = 0

    def close(self) -> None:
        self._sock.close()
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()

    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        """The result of a JSON-RPC request. Raises Refused, or a WireError, after which the wire is unusable."""
        async with self._lock:
            mine = self.last_id + 1
            try:
                data = jsontext.write({"jsonrpc": "2.0", "id": mine, "method": method, "params": params or {}})
            except ValueError as error:
                raise Refused(INVALID_PARAMS, f"the arguments can't be sent as JSON: {error}") from error
            self.last_id = mine
            await self._send(data + b"\n")
            while True:
                message = await self._message()
                if "method" in message:
                    if "id" in message:
                        await self._answer(message)
                elif message.get("id") == mine and "result" in message:
                    return message["result"]
                elif message.get("id") == mine and isinstance(message.get("error"), dict):
                    error = message["error"]
                    raise Refused(error.get("code", 0), str(error.get("message", "")))
                else:
                    raise Violation(f"an answer to no request of ours: {_short(msgspec.json.encode(message))}")

    async def notify(self, method: str) -> None:
        async with self._lock:
            await self._send_message({"jsonrpc": "2.0", "method": method})

    async def control(self, request: Mapping[str, Any], fds: Sequence[int] = ()) -> tuple[dict[str, Any], list[int]]:
        """The answer to a control line and the descriptors that came with it, which the caller has to close."""
        async with self._lock:
            await self._send(b"\0" + msgspec.json.encode(request) + b"\n", fds)
            return await self.control_line()

    async def control_line(self) -> tuple[dict[str, Any], list[int]]:
        line = await self._line(with_fds=True)
        if line[:1] != b"\0":
            raise Violation(f"not the answer to a control line: {_short(line)}")
        fds, self._fds = self._fds, []
        return _control(line), fds

    async def _answer(self, message: Mapping[str, Any]) -> None:
        """Of what a server may ask of its client we can do one thing: show that we are there."""
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        if message["method"] == "ping":
            reply["result"] = {}
        else:
            reply["error"] = {"code": METHOD_NOT_FOUND, "message": f"this client has no {message['method']}"}
        await self._send_message(reply)

    async def _message(self) -> dict[str, Any]:
        while True:
            line = await self._line()
            start = line[:1]
            if start == b"{":
                try:
                    message = jsontext.read(line)
                except ValueError as error:
                    raise Violation(f"malformed JSON ({error}): {_short(line)}") from error
                if message.get("jsonrpc") != "2.0":
                    raise Violation(f"JSON, but no JSON-RPC: {_short(line)}")
                return message
            if start == b"\0":
                self.greeting = _control(line)
            elif line.strip():
                self._note(line)

    def _note(self, line: bytes) -> None:
        """A whole line of something else is passed over, as the protocol's own client does, within bounds."""
        if b'"jsonrpc"' in line:
            raise Violation(f"a message with other output in its line: {_short(line)}")
        self.stray = (self.stray + line + b"\n")[-2000:]
        self._stray_bytes += len(line)
        if self._stray_bytes > STRAY_BYTES:
            raise Violation(f"more than {STRAY_BYTES} bytes beside the protocol, the last: {_short(line)}")

    async def _line(self, with_fds: bool = False) -> bytes:
        while not self._lines:
            data = await self._receive(with_fds)
            if not data:
                raise Ended("the stream ended")
            self._take(data)
        return self._lines.pop(0)

    def _take(self, data: bytes) -> None:
        head, newline, rest = data.partition(b"\n")
        self._chunks.append(head)
        self._held += len(head)
        if self._held > self._max:
            raise TooLarge(f"a message of more than {self._max} bytes")
        if newline:
            self._lines.append(b"".join(self._chunks))
            lines = rest.split(b"\n")
            self._chunks = [lines.pop()]
            self._held = len(self._chunks[0])
            self._lines += lines

    async def _receive(self, with_fds: bool) -> bytes:
        while True:
            try:
                if not with_fds:
                    return self._sock.recv(CHUNK)
                data, ancillary, _, _ = self._sock.recvmsg(CHUNK, socket.CMSG_SPACE(4 * 4))
                for level, kind, rights in ancillary:
                    if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                        fds = array.array("i")
                        fds.frombytes(rights[: len(rights) - len(rights) % fds.itemsize])
                        self._fds += fds
                return data
            except BlockingIOError:
                await self._readable()
            except OSError as error:
                raise Ended(error.strerror or str(error)) from error

    async def _readable(self) -> None:
        try:
            await anyio.wait_readable(self._sock)
        except anyio.ClosedResourceError as error:
            raise Ended("the wire was closed") from error

    async def _send_message(self, message: Mapping[str, Any]) -> None:
        await self._send(msgspec.json.encode(message) + b"\n")

    async def _send(self, data: bytes, fds: Sequence[int] = ()) -> None:
        view = memoryview(data)
        while view:
            try:
                if fds:
                    rights = array.array("i", fds)
                    sent = self._sock.sendmsg([view], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
                    fds = ()
                else:
                    sent = self._sock.send(view)
                view = view[sent:]
            except BlockingIOError:
                await self._writable()
            except OSError as error:
                raise Ended(error.strerror or str(error)) from error

    async def _writable(self) -> None:
        """Wait for room, and meanwhile take what comes: a server that is writing itself doesn't read us."""

        faults: list[WireError] = []

        async def read(scope: anyio.CancelScope) -> None:
            try:
                await self._readable()
                self._take(self._sock.recv(CHUNK))
            except BlockingIOError:
                pass
            except OSError as error:
                faults.append(Ended(error.strerror or str(error)))
            except WireError as error:
                faults.append(error)
            scope.cancel()

        async with anyio.create_task_group() as both:
            both.start_soon(read, both.cancel_scope)
            await anyio.wait_writable(self._sock)
            both.cancel_scope.cancel()
        if faults:
            raise faults[0]


def _control(line: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(line[1:], type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise Violation(f"malformed control line ({error}): {_short(line)}") from error


def _short(line: bytes) -> str:
    text = line[:200].decode(errors="replace")
    return repr(text) + (f" and {len(line) - 200} bytes more" if len(line) > 200 else "")
