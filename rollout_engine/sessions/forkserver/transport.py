"""The SDK's stdio transport on one thread, so that a live session can be forked. Replaces its streams, not its code.

Invariant: while a process waits here for its next message it has one thread and a loop without kernel objects of its
own (poll, not epoll), and its copy has its own wire, its own wake-up pipe and nothing half read or half written.
"""

import asyncio
import contextlib
import fcntl
import gc
import json
import os
import selectors
import signal
import socket
import stat
import sys

from . import connections, control, memory, preloading, probe


def install(module):
    """Called with ``mcp.server.stdio`` once it is imported."""
    original = module.stdio_server

    @contextlib.asynccontextmanager
    async def stdio_server(stdin=None, stdout=None):
        if stdin is None and stdout is None and Wire.current is None and attachable():
            stdin = stdout = Wire()
        async with original(stdin, stdout) as streams:
            yield streams

    module.stdio_server = stdio_server


def attachable():
    """Whether this is an asyncio loop over poll whose standard input is a session's socket."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return False
    if not isinstance(getattr(loop, "_selector", None), selectors.PollSelector):
        return False
    return stat.S_ISSOCK(os.fstat(0).st_mode)


class Wire:
    """Both streams as the SDK uses them: asynchronous lines of text in, write and flush out."""

    current = None

    def __init__(self):
        Wire.current = self
        self._loop = asyncio.get_running_loop()
        fd = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
        self._sock = socket.socket(fileno=fd)
        self._sock.setblocking(False)
        # From here on what anybody prints goes to standard error, and reading standard input finds nothing.
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        self._partial = b""
        self._lines = []
        self._fds = []
        self._ended = False
        self._waiting = None
        self._writing = False
        self._touched = True
        self._pooled = set()
        self._loop.add_reader(fd, self._readable)
        self._sock.send(control.encode({"transport": "poll"}))

    def __aiter__(self):
        return self

    async def __anext__(self):
        while True:
            while not self._lines:
                if self._ended:
                    raise StopAsyncIteration
                self._waiting = self._loop.create_future()
                try:
                    await self._waiting
                finally:
                    self._waiting = None
            line = self._lines.pop(0)
            if line[:1] != b"\0":
                self._touched = True
                return line.decode("utf-8", "replace")
            fds, self._fds = self._fds, []
            await self._control(json.loads(line[1:]), fds)

    def _readable(self):
        try:
            data, ancillary, _, _ = self._sock.recvmsg(1 << 18, socket.CMSG_SPACE(4 * 4))
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data, ancillary = b"", ()
        self._fds += control.received_fds(ancillary)
        if data:
            lines = (self._partial + data if self._partial else data).split(b"\n")
            self._partial = lines.pop()
            self._lines += lines
        else:
            self._ended = True
            self._loop.remove_reader(self._sock.fileno())
        if self._waiting is not None and not self._waiting.done() and (self._lines or self._ended):
            self._waiting.set_result(None)

    async def write(self, text):
        await self._send(text.encode("utf-8", "replace"))

    async def flush(self):
        pass

    async def _send(self, data, fds=()):
        self._writing = True
        view = memoryview(data)
        while view:
            try:
                view = view[self._sock.sendmsg([view], control.rights(fds)) :]
                fds = ()
            except (BlockingIOError, InterruptedError):
                room = self._loop.create_future()
                self._loop.add_writer(self._sock.fileno(), room.set_result, None)
                try:
                    await room
                finally:
                    self._loop.remove_writer(self._sock.fileno())
        self._writing = False

    async def _control(self, request, fds):
        if "fork" in request:
            if await self._fork(request["fork"], fds):
                return
        elif "reap" in request:
            await self._send(control.encode(control.reap(request["reap"])))
        elif "modules" in request:
            await self._send(control.encode({"modules": preloading.imported()}))
        elif "settle" in request or "preload" in request:
            # Asked of a process that only ever forks: copies then share what it has without touching it.
            preloading.preload(request.get("preload", ()))
            self._touched = True
            gc.collect()
            memory.consolidate()
            refusal = self._refusal()
            await self._send(control.encode({"refused": refusal} if refusal else {"settled": True}))
        for fd in fds:
            os.close(fd)

    async def _fork(self, request, fds):
        """Fork and answer. True in the child, whose descriptors are its own already."""
        refusal = self._refusal(fds)
        if refusal:
            await self._send(control.encode({"refused": refusal}))
            return False
        gc.freeze()
        try:
            with connections.ended_stream() if self._pooled else contextlib.nullcontext() as ended:
                pid, pidfd = control.fork(request)
                if not pid:
                    connections.close_by_peer(self._pooled, ended)
        except OSError as error:
            await self._send(control.encode({"full": error.strerror}))
            return False
        if not pid:
            self._become_copy(fds[0])
            return True
        await self._send(control.encode({"pid": pid}), [pidfd])
        os.close(pidfd)
        return False

    def _refusal(self, fds=()):
        """Why this process can't be copied now, or nothing. ``fds`` came with the request."""
        if self._lines or self._partial or self._writing:
            return "it is in the middle of a message"
        retire_threads(self._loop)
        if not self._touched and probe.threads() == 1:
            return ""  # nothing but forks since the last look
        loop = self._loop
        ours = {0, 1, 2, self._sock.fileno(), loop._ssock.fileno(), loop._csock.fileno(), *fds}
        self._pooled = set()
        if probe.foreign_fds(ours):
            self._pooled = connections.pooled_fds()
        refusal = probe.shared(ours | self._pooled)
        self._touched = bool(refusal)
        return refusal

    def _become_copy(self, fd):
        os.set_blocking(fd, False)
        os.dup2(fd, self._sock.fileno(), inheritable=False)
        os.close(fd)
        preloading.started()
        loop = self._loop
        asyncio._set_running_loop(loop)  # which is remembered together with the pid
        woken = signal.set_wakeup_fd(-1)
        loop._close_self_pipe()
        loop._make_self_pipe()
        if woken != -1:
            signal.set_wakeup_fd(loop._csock.fileno())


def retire_threads(loop):
    """End worker threads that wait for work: both pools start new ones when they need them."""
    backend = sys.modules.get("anyio._backends._asyncio")
    if backend is not None:
        try:
            idle = list(backend._threadpool_idle_workers.get())
        except (LookupError, AttributeError):
            idle = []
        for worker in idle:
            worker.stop()
            worker.join(probe.THREAD_SECONDS)
    executor = getattr(loop, "_default_executor", None)
    threads = getattr(executor, "_threads", ())
    if threads and executor._work_queue.empty() and executor._idle_semaphore._value >= len(threads):
        loop._default_executor = None
        executor.shutdown(wait=True)
