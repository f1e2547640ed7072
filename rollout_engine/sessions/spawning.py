"""Sessions that are fresh processes, of any program.

Invariant: the processes are started by a fork server of ours, so that they can't outlive the host either.
"""

from __future__ import annotations

from collections.abc import Mapping

import anyio
from anyio.abc import TaskGroup

from rollout_engine.sessions.errors import SessionError
from rollout_engine.sessions.limits import HostLimits
from rollout_engine.sessions.links import ProcessLink
from rollout_engine.sessions.processes import ForkFailed, ForkServer, fork, plain_interpreter
from rollout_engine.sessions.results import Mode, ToolSpec
from rollout_engine.sessions.servers import ServerSpec
from rollout_engine.sessions.sources import environment, not_started
from rollout_engine.sessions.wire import WireError


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
