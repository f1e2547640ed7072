"""Where the sessions of one server come from.

Invariant: a server is started and examined once, at its first use, and what was found decides how all its sessions are
made; a host never changes its mind silently.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from rollout_engine.sessions.commands import PythonCommand, parse
from rollout_engine.sessions.errors import ServerStartFailed, SessionError
from rollout_engine.sessions.limits import HostLimits
from rollout_engine.sessions.links import Link, ProcessLink
from rollout_engine.sessions.processes import (
    ForkFailed,
    ForkRefused,
    ForkServer,
    SessionProcess,
    fork,
    plain_interpreter,
)
from rollout_engine.sessions.remote import RemoteSource
from rollout_engine.sessions.results import Mode, ToolSpec
from rollout_engine.sessions.servers import ServerSpec
from rollout_engine.sessions.wire import WireError

HASH_SEED = "0"
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""For a process that is forked: libraries of numerics start a pool of threads at import otherwise."""
NO_TRANSPORT = "it reads its standard input by other means than the SDK's stdio transport on asyncio"


class Unforkable(Exception):
    """Why sessions of a server can't be forked."""


class Source(Protocol):
    spec: ServerSpec
    mode: Mode
    tools: Mapping[str, ToolSpec]
    broken: bool
    """What its sessions are made from has ended: it has to be started again."""

    async def open(self, seed: int) -> Link:
        """A server that has done its handshake and nothing else. Raises SessionError."""
        ...

    def bytes(self) -> int:
        """Memory to count for a session."""
        ...

    async def close(self) -> None: ...


class SpawnSource:
    """A fresh process a session, of any program."""

    def __init__(self, spec: ServerSpec, limits: HostLimits, mode: Mode):
        self.spec, self.limits, self.mode = spec, limits, mode
        self.tools: Mapping[str, ToolSpec] = {}
        self.broken = False
        self._server = ForkServer(limits)

    async def start(self, tasks: TaskGroup) -> None:
        """Start the launcher and look at one session. Raises SessionError."""
        job = {"kind": "exec", "command": list(self.spec.command)}
        cwd = self.spec.cwd
        try:
            self._server.start(tasks, plain_interpreter(), environment(self.spec), cwd, job)
            with anyio.fail_after(self.limits.start_timeout):
                await self._server.ready()
        except (OSError, WireError, TimeoutError) as error:
            raise not_started(self.spec, error) from error
        link = await self.open(0)
        try:
            self.tools = await link.list_tools(self.limits.start_timeout)
        finally:
            await link.close()

    async def open(self, seed: int) -> ProcessLink:
        try:
            process = await fork((self._server.wire,), self.limits, seed)
        except ForkFailed as error:
            self.broken = True
            raise not_started(self.spec, error) from error
        link = ProcessLink(
            self.spec.name, process, self._server.tail, f"it runs as a fresh process ({self.mode.reason})"
        )
        link.tools = self.tools
        try:
            await link.handshake(self.limits.start_timeout)
        except SessionError:
            raise
        except BaseException:
            await link.close()
            raise
        return link

    def bytes(self) -> int:
        return self.limits.spawn_bytes

    async def close(self) -> None:
        if self._server.alive:
            await self._server.close()


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
        self._no_copies = ""

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
            self._no_copies = await link.settle()
        except BaseException:
            await link.close()
            raise
        if self._no_copies:
            await link.close()
        else:
            self._live = link.process
        start = f"Python {report['python']}, forked "
        start += "after its handshake" if self._live else f"at its {report['start']}"
        self.mode = Mode("fork", start, clones=link.process.wire.greeting is not None, note=self._no_copies)

    async def open(self, seed: int) -> ProcessLink:
        try:
            if self._live is None:
                link = await self._fork_at_start(seed)
            else:
                link = ProcessLink(self.spec.name, await self._live.fork(seed, bound=True), self._server.tail)
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

    def bytes(self) -> int:
        return self.limits.fork_bytes

    async def close(self) -> None:
        if self._live is not None:
            await self._live.end()
        await self._server.close()


def not_started(spec: ServerSpec, error: Exception) -> ServerStartFailed:
    return ServerStartFailed(f"server {spec.name} can't be started: {error}", server=spec.name)


def environment(spec: ServerSpec, defaults: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """The host's environment with the server's own entries; the hash seed pinned so that set order can be repeated."""
    return {"PYTHONHASHSEED": HASH_SEED, "FASTMCP_LOG_LEVEL": "WARNING", **defaults, **os.environ, **spec.env}


async def start_source(spec: ServerSpec, limits: HostLimits, tasks: TaskGroup) -> Source:
    """Find out how this server's sessions can be made. Raises SessionError where they can't at all."""
    if spec.kind == "remote":
        return await _started(RemoteSource(spec, limits), tasks)
    reason = await _fork_source(spec, limits, tasks)
    if not isinstance(reason, str):
        return reason
    source = SpawnSource(spec, limits, Mode("spawn", reason))
    return await _started(source, tasks)


async def _fork_source(spec: ServerSpec, limits: HostLimits, tasks: TaskGroup) -> Source | str:
    if spec.mode == "spawn":
        return "its specification asks for it"
    command = parse(spec.command, environment(spec))
    try:
        if isinstance(command, str):
            raise Unforkable(command)
        return await _started(ForkSource(spec, limits, command), tasks)
    except (Unforkable, ForkFailed, SessionError) as error:
        if spec.mode == "fork":
            raise not_started(spec, error) from error
        return str(error)


async def _started(source: ForkSource | SpawnSource | RemoteSource, tasks: TaskGroup) -> Source:
    try:
        await source.start(tasks)
    except BaseException:
        await source.close()
        raise
    return source
