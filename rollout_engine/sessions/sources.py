"""Where the sessions of one server come from.

Invariant: a server is started and examined once, at its first use, and what was found decides how all its sessions are
made; a host never changes its mind silently.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from rollout_engine.sessions.errors import ServerStartFailed, SessionError
from rollout_engine.sessions.limits import HostLimits
from rollout_engine.sessions.links import Link, ProcessLink
from rollout_engine.sessions.processes import ForkFailed, ForkServer, fork, plain_interpreter
from rollout_engine.sessions.results import Mode, ToolSpec
from rollout_engine.sessions.servers import ServerSpec
from rollout_engine.sessions.wire import WireError

HASH_SEED = "0"


class Source(Protocol):
    spec: ServerSpec
    mode: Mode
    tools: Mapping[str, ToolSpec]

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
            raise ServerStartFailed(
                f"server {self.spec.name} can't be started: {error}", server=self.spec.name
            ) from error
        link = await self.open(0)
        try:
            self.tools = await link.list_tools(self.limits.start_timeout)
        finally:
            await link.close()

    async def open(self, seed: int) -> ProcessLink:
        try:
            process = await fork((self._server.wire,), self.limits, seed)
        except ForkFailed as error:
            raise ServerStartFailed(
                f"server {self.spec.name} can't be started: {error}", server=self.spec.name
            ) from error
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


def environment(spec: ServerSpec) -> dict[str, str]:
    """The host's environment with the server's own entries; the hash seed pinned so that set order can be repeated."""
    env = {**os.environ, **spec.env}
    env.setdefault("PYTHONHASHSEED", HASH_SEED)
    env.setdefault("FASTMCP_LOG_LEVEL", "WARNING")
    return env


async def start_source(spec: ServerSpec, limits: HostLimits, tasks: TaskGroup) -> Source:
    """Find out how this server's sessions can be made. Raises SessionError where they can't at all."""
    source = SpawnSource(spec, limits, Mode("spawn", "every server is started afresh"))
    try:
        await source.start(tasks)
    except BaseException:
        await source.close()
        raise
    return source
