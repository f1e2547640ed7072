"""Sessions of Python servers that are imported once and forked.

Invariant: a session starts in a state that a process of its own would have had, too: where the server starts its event
loop, or after its handshake. What a copy would share with its siblings keeps a server from being forked at all.
"""

from __future__ import annotations

from collections.abc import Mapping

import anyio
from anyio.abc import TaskGroup

from rollout_engine.sessions.commands import PythonCommand
from rollout_engine.sessions.lessons import Lessons
from rollout_engine.sessions.limits import HostLimits
from rollout_engine.sessions.links import ProcessLink
from rollout_engine.sessions.processes import ForkFailed, ForkRefused, ForkServer, SessionProcess, fork
from rollout_engine.sessions.results import Mode, ToolSpec
from rollout_engine.sessions.servers import ServerSpec
from rollout_engine.sessions.sources import environment, not_started
from rollout_engine.sessions.wire import WireError

ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""For a process that is forked: libraries of numerics start a pool of threads at import otherwise."""
NO_TRANSPORT = "it reads its standard input by other means than the SDK's stdio transport on asyncio"


class Unforkable(Exception):
    """Why sessions of a server can't be forked."""


class ForkSource:
    """A Python server that is imported once; its sessions are forked.

    Where its transport allows it they are copies of one live process that has done its handshake and nothing else;
    otherwise they start where the server starts its event loop.
    """

    def __init__(self, spec: ServerSpec, limits: HostLimits, command: PythonCommand):
        self.spec, self.limits, self._command = spec, limits, command
        self.mode = Mode("fork", "")
        self.tools: Mapping[str, ToolSpec] = {}
        self.broken = False
        self._server = ForkServer(limits)
        self._live: SessionProcess | None = None
        self._retired: list[SessionProcess] = []
        self._lessons = Lessons(limits.fork_bytes)

    async def start(self, tasks: TaskGroup) -> None:
        """Import the server and look at one session. Raises Unforkable with the reason."""
        command = self._command
        job = {"kind": "python", "module": command.module, "script": command.script, "args": command.args}
        try:
            self._server.start(tasks, list(command.interpreter), environment(self.spec, ONE_THREAD), self.spec.cwd, job)
            with anyio.fail_after(self.limits.start_timeout):
                report = await self._server.ready()
        except OSError as error:
            raise Unforkable(f"{command.interpreter[0]}: {error.strerror}") from error
        except TimeoutError as error:
            raise Unforkable(f"it did not start an event loop within {self.limits.start_timeout:g} s") from error
        except WireError as error:
            raise Unforkable(f"it ended in importing{self._server.tail_note()}") from error
        if not report["ready"]:
            raise Unforkable(report["reason"] + self._server.tail_note())
        link = await self._fork_at_start(0)
        try:
            self.tools = await link.list_tools(self.limits.start_timeout)
            no_copies = await link.settle()
        except BaseException:
            await link.close()
            raise
        if no_copies:
            await link.close()
        else:
            self._live = link.process
        start = f"Python {report['python']}, forked "
        start += "after its handshake" if self._live else f"at its {report['start']}"
        self.mode = Mode("fork", start, clones=link.process.wire.greeting is not None, note=no_copies)

    async def open(self, seed: int) -> ProcessLink:
        try:
            if self._live is None:
                link = await self._fork_at_start(seed)
            else:
                process = await self._live.fork(seed, bound=True)
                link = ProcessLink(self.spec.name, process, self._server.tail, observe=self._learn)
        except (ForkFailed, ForkRefused) as error:
            self.broken = True
            raise not_started(self.spec, error) from error
        link.tools = self.tools
        return link

    async def _fork_at_start(self, seed: int) -> ProcessLink:
        process = await fork((self._server.wire,), self.limits, seed)
        link = ProcessLink(self.spec.name, process, self._server.tail)
        try:
            await link.handshake(self.limits.start_timeout)
        except BaseException:
            await link.close()
            raise
        if process.wire.greeting is None:
            link.refuse_copies(NO_TRANSPORT)
        return link

    async def _learn(self, process: SessionProcess) -> None:
        """Look at a session that is about to end: what it took and what it imported."""
        if not self._lessons.due():
            return
        self._lessons.took(process.pid)
        live = self._live
        if live is None or not self.spec.preload:
            return
        with anyio.fail_after(self.limits.fork_timeout):
            answer, _ = await process.wire.control({"modules": True})
        names = self._lessons.new(answer["modules"])
        if not names:
            return
        try:
            with anyio.CancelScope(shield=True), anyio.fail_after(self.limits.start_timeout):
                answer, _ = await live.wire.control({"preload": names})
        except (WireError, TimeoutError):
            answer = {"refused": "it ended"}
        if "refused" in answer:
            # What was imported can't be shared. The fork server has imported none of it: start from there again.
            self._lessons.forget()
            await self._relive()

    async def _relive(self) -> None:
        """Another process to copy sessions from; the one before stays for the sessions that hang on it."""
        link = await self._fork_at_start(0)
        if await link.settle():
            await link.close()
            self.broken = True
            return
        self._retired.append(self._live)
        self._live = link.process

    def bytes(self) -> int:
        return self._lessons.bytes

    async def close(self) -> None:
        for live in (self._live, *self._retired):
            if live is not None:
                await live.end()
        await self._server.close()
