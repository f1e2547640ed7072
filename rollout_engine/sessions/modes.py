"""Which way a server's sessions are made: tried in the order of cost, with the reason where the cheap way is barred.

Invariant: a server that works as a fresh process works here, whatever keeps it from being forked.
"""

from __future__ import annotations

from anyio.abc import TaskGroup

from rollout_engine.sessions.commands import parse
from rollout_engine.sessions.errors import SessionError
from rollout_engine.sessions.forking import ForkSource, Unforkable
from rollout_engine.sessions.limits import HostLimits
from rollout_engine.sessions.processes import ForkFailed
from rollout_engine.sessions.remote import RemoteSource
from rollout_engine.sessions.results import Mode
from rollout_engine.sessions.servers import ServerSpec
from rollout_engine.sessions.sources import Source, environment, not_started
from rollout_engine.sessions.spawning import SpawnSource


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
