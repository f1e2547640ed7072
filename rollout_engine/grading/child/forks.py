"""The engine's side of the grader's fork server.

Invariant: each child is known by its pidfd from the moment it exists until its end has been told, so it is killed
without doubt about whose process it is, and its end is never missed.
"""

from __future__ import annotations

import array
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import trio

from rollout_engine.errors import GraderError

_PROGRAM = Path(__file__).with_name("zygote.py")
_LARGEST = 16 << 20
"""Of what a child says at once; a longer one isn't read."""
_INT = array.array("i").itemsize


class Zygote:
    """One running fork server."""

    def __init__(self, control: Any) -> None:
        self._control = control
        self._asked: deque[_Asked] = deque()
        self._children: dict[int, Child] = {}
        self.dead = False

    @classmethod
    async def serve(cls, python: str, modules: Sequence[str], *, task_status: trio.TaskStatus[Zygote]) -> None:
        """Start one and hear it until it ends or the task is cancelled, which ends it and all of its children."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                process = subprocess.Popen(
                    [python or sys.executable, "-I", str(_PROGRAM), str(theirs.fileno()), *modules],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    env={"PYTHONHASHSEED": "0"},
                )
            control = trio.socket.from_stdlib_socket(ours)
            zygote = cls(control)
            try:
                if await control.recv(16) != b"ready":
                    raise GraderError(f"the grader's fork server can't be started with {python or sys.executable}")
                task_status.started(zygote)
                await zygote._hear()
            finally:
                zygote._bury()
                control.close()
                process.kill()
                process.wait()

    async def fork(self, limits: dict[str, Any]) -> Child:
        """A fresh child under ``limits``; enter it to have it ended."""
        ours, theirs = socket.socketpair()
        asked = _Asked(Child(ours))
        try:
            with theirs:
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [theirs.fileno()]))]
                self._asked.append(asked)
                try:
                    await self._control.sendmsg([json.dumps(limits).encode()], rights)
                except OSError as error:
                    raise GraderError("the grader's fork server is gone") from error
            await asked.answered.wait()
            if self.dead:
                raise GraderError("the grader's fork server is gone")
        except BaseException:
            asked.given_up = True
            asked.child.end()
            raise
        return asked.child

    async def _hear(self) -> None:
        while True:
            try:
                data, attached, _, _ = await self._control.recvmsg(4096, socket.CMSG_SPACE(_INT))
            except OSError:
                return
            if not data:
                return
            message = json.loads(data)
            if "ended" in message:
                self._children.pop(message["ended"]).tell_end(message["status"], message["cpu"])
                continue
            asked = self._asked.popleft()
            asked.child.pidfd = array.array("i", attached[0][2][:_INT])[0]
            self._children[message["pid"]] = asked.child
            asked.answered.set()
            if asked.given_up:
                asked.child.end()

    def _bury(self) -> None:
        self.dead = True
        for asked in self._asked:
            asked.answered.set()
        for child in self._children.values():
            child.tell_end(signal.SIGKILL, 0.0)


class _Asked:
    """A child that was asked for."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.answered = trio.Event()
        self.given_up = False


class Child:
    """One forked child and its socket."""

    def __init__(self, channel: socket.socket) -> None:
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(channel))
        self._buffer = bytearray()
        self._ended = trio.Event()
        self._status = 0
        self.pidfd = -1
        self.cpu_seconds = 0.0

    async def __aenter__(self) -> Child:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ):
        self.end()
        with trio.CancelScope(shield=True):
            await self._ended.wait()

    def end(self) -> None:
        """Kill it, if it still runs, and close the socket."""
        if self.pidfd >= 0 and not self._ended.is_set():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        self._stream.socket.close()

    def tell_end(self, status: int, cpu_seconds: float) -> None:
        self._status, self.cpu_seconds = status, cpu_seconds
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
        self._ended.set()

    async def ended(self) -> int:
        """Wait for its end: the status that ``os.wait`` gives."""
        await self._ended.wait()
        return self._status

    async def send(self, data: bytes) -> None:
        await self._stream.send_all(struct.pack(">I", len(data)) + data)

    async def receive(self) -> bytes | None:
        """What it says next; None when it has ended; nothing when it says more than it may."""
        head = await self._exactly(4)
        if head is None:
            return None
        (size,) = struct.unpack(">I", head)
        if size > _LARGEST:
            return b""
        return await self._exactly(size)

    async def _exactly(self, size: int) -> bytes | None:
        while len(self._buffer) < size:
            part = await self._stream.receive_some()
            if not part:
                return None
            self._buffer += part
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data
