"""Processes as the host holds them: a fork server a server, and the session processes that were forked.

Invariant: every session process is known by a pidfd, never by a pid that might be somebody else's by now; ending one is
kill, wait, account, close, whatever happens in between, and within a bound.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskGroup

from rollout_engine.sessions.errors import HostFull
from rollout_engine.sessions.limits import HostLimits
from rollout_engine.sessions.results import Usage
from rollout_engine.sessions.wire import Wire, WireError

PROGRAM = str(Path(__file__).parent / "forkserver" / "__main__.py")
TAIL_BYTES = 4000


class ForkFailed(Exception):
    """A process that was asked to fork did not answer as it should."""


class ForkRefused(Exception):
    """A process said why it can't fork now. It is as it was."""


class ForkServer:
    """The program that a server's sessions are forked from. ``report`` is what it said of itself when it was ready."""

    def __init__(self, limits: HostLimits):
        self._limits = limits
        self.report: dict[str, Any] = {}
        self.alive = False

    def start(
        self, tasks: TaskGroup, interpreter: list[str], env: Mapping[str, str], cwd: str | None, job: dict[str, Any]
    ) -> None:
        """Start it in this thread: the kernel ends it with the thread that started it.

        Raises OSError where the interpreter can't be started.
        """
        ours, theirs = socket.socketpair()
        reading, writing = os.pipe()
        try:
            # An interpreter remembers whether its standard streams can seek: a socket and a pipe can't, as a session's.
            plug, hole = socket.socketpair()
            with theirs, plug, hole:
                hole.shutdown(socket.SHUT_WR)
                self._process = subprocess.Popen(
                    [*interpreter, PROGRAM, str(theirs.fileno()), str(os.getpid())],
                    stdin=plug,
                    stdout=writing,
                    stderr=writing,
                    pass_fds=[theirs.fileno()],
                    env=dict(env),
                    cwd=cwd,
                    start_new_session=True,
                )
        except (OSError, ValueError) as error:
            ours.close()
            os.close(reading)
            if isinstance(error, ValueError):  # a NUL character, or a variable that no environment can have
                raise OSError(errno.EINVAL, str(error)) from error
            raise
        finally:
            os.close(writing)
        self._pidfd = os.pidfd_open(self._process.pid)
        self.wire = Wire(ours, self._limits.result_bytes)
        self.alive = True
        self._job = job
        self._stderr = _Tail(reading)
        self._done = anyio.CancelScope()
        tasks.start_soon(self._stderr.follow, self._done)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ready(self) -> dict[str, Any]:
        """What it reports when it can fork, or why it can't. Raises WireError where it ended instead."""
        self.report, fds = await self.wire.control(self._job)
        for fd in fds:
            os.close(fd)
        return self.report

    def tail(self) -> str:
        """The end of what the server and its sessions wrote to standard error."""
        return self._stderr.text()

    def tail_note(self) -> str:
        text = self.tail()
        return f"\n  the end of its standard error: {text[-1500:]}" if text else ""

    async def close(self) -> None:
        """End it with everything below it."""
        if not self.alive:
            return
        self.alive = False
        with anyio.CancelScope(shield=True):
            self.wire.close()  # the end of its control socket: it ends its children, then itself
            # Without a report it is still in the server's own code, which doesn't look at our socket.
            with anyio.move_on_after(self._limits.close_timeout if self.report else 0) as waiting:
                await anyio.wait_readable(self._pidfd)
            if waiting.cancelled_caught:
                os.killpg(self._process.pid, signal.SIGKILL)
                await anyio.wait_readable(self._pidfd)
        self._process.wait()
        os.close(self._pidfd)
        self._done.cancel()


class _Tail:
    """The last bytes of a pipe, read as they come so that nobody blocks on writing it."""

    def __init__(self, fd: int):
        self._fd = fd
        os.set_blocking(fd, False)
        self._bytes = b""

    async def follow(self, scope: anyio.CancelScope) -> None:
        try:
            with scope:
                while True:
                    await anyio.wait_readable(self._fd)
                    if not self._read():
                        return
        finally:
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> bool:
        try:
            data = os.read(self._fd, 65536)
        except BlockingIOError:
            return True
        self._bytes = (self._bytes + data)[-TAIL_BYTES:]
        return bool(data)

    def text(self) -> str:
        if self._fd >= 0:
            self._read()
        return self._bytes.decode(errors="replace").strip()


@dataclass
class SessionProcess:
    """One forked process: the server of one session. ``parents`` can account for it, the nearest first."""

    pid: int
    pidfd: int
    wire: Wire
    parents: tuple[Wire, ...]
    limits: HostLimits
    usage: Usage = field(default_factory=Usage)
    status: int | None = None
    """How it ended, as the system's wait status, once known."""
    ended: bool = False

    async def fork(self, seed: int, *, bound: bool) -> SessionProcess:
        """A copy of this process as it stands, with a wire of its own."""
        copy = await fork((self.wire, *self.parents), self.limits, seed, bound=bound, last_id=self.wire.last_id)
        copy.wire.greeting = self.wire.greeting
        return copy

    def kill(self) -> None:
        if not self.ended:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    async def end(self, grace: float = 0.0) -> Usage:
        """Kill it, after ``grace`` seconds to end by itself, with everything it started; what it used. Never raises."""
        if self.ended:
            return self.usage
        if grace:
            with anyio.move_on_after(grace, shield=True):
                await anyio.wait_readable(self.pidfd)
        self.kill()
        self.ended = True
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(self.limits.close_timeout):
                await anyio.wait_readable(self.pidfd)
            os.close(self.pidfd)
            self.wire.close()
            for parent in self.parents:
                with anyio.move_on_after(self.limits.close_timeout):
                    try:
                        account, _ = await parent.control({"reap": self.pid})
                    except WireError:
                        continue  # that parent has ended: its children went to the next one
                    if account["status"] is None:
                        continue
                    self.status = account["status"]
                    self.usage = Usage(account["cpu"], account["peak"])
                    break
        return self.usage


async def fork(
    parents: tuple[Wire, ...], limits: HostLimits, seed: int, *, bound: bool = True, last_id: int = 0
) -> SessionProcess:
    """Ask the process behind the first wire to fork.

    The exchange can't be cancelled: a process must not come to be that nobody holds. Raises ForkRefused, HostFull,
    or ForkFailed, after which the parent is unusable.
    """
    try:
        ours, theirs = socket.socketpair()
    except OSError as error:
        raise HostFull(f"this process has no room for another session: {error.strerror}") from error
    with theirs:
        request = {"fork": {"seed": seed, "bound": bound}}
        try:
            with anyio.CancelScope(shield=True), anyio.fail_after(limits.fork_timeout):
                reply, fds = await parents[0].control(request, [theirs.fileno()])
        except (WireError, TimeoutError) as error:
            ours.close()
            raise ForkFailed(str(error) or f"no answer within {limits.fork_timeout:g} s") from error
    if "pid" not in reply:
        ours.close()
        if "full" in reply:
            raise HostFull(f"the system has no room for another process: {reply['full']}")
        raise ForkRefused(reply["refused"])
    if not fds:
        # It came to be, and the descriptor that we would hold it by did not get through.
        ours.close()
        with anyio.CancelScope(shield=True), anyio.move_on_after(limits.fork_timeout):
            await parents[0].control({"reap": reply["pid"]})
        raise HostFull("this process has no room for another session's descriptors")
    return SessionProcess(reply["pid"], fds[0], Wire(ours, limits.result_bytes, last_id), parents, limits)


def plain_interpreter() -> list[str]:
    """What runs the fork server of a program that isn't Python: this interpreter without site packages."""
    return [sys.executable, "-I", "-S"]
