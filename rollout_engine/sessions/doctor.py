"""What a host finds out about each server, for people: how its sessions are made and why.

Invariant: looking leaves nothing running, and a server that can't be started is a finding, not an error.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from rollout_engine.sessions.errors import SessionError
from rollout_engine.sessions.host import SessionHost
from rollout_engine.sessions.limits import HostLimits
from rollout_engine.sessions.results import Mode
from rollout_engine.sessions.servers import ServerSpec


@dataclass(frozen=True, kw_only=True)
class Finding:
    """``fault`` is empty where the server works; ``seconds``: its first start, and then opening one more session."""

    server: str
    mode: Mode | None = None
    tools: tuple[str, ...] = ()
    start_seconds: float = 0.0
    open_seconds: float = 0.0
    fault: str = ""


async def examine(specs: Mapping[str, ServerSpec], limits: HostLimits | None = None) -> list[Finding]:
    """Start every server, one after the other, and say what was found. Calls no init tool and no other tool."""
    findings = []
    async with SessionHost(specs, limits) as host:
        for name in specs:
            began = time.perf_counter()
            try:
                mode = await host.examine(name)
                started = time.perf_counter()
                async with host.bare(name) as tools:
                    opened = time.perf_counter()
                findings.append(
                    Finding(
                        server=name,
                        mode=mode,
                        tools=tuple(tools),
                        start_seconds=started - began,
                        open_seconds=opened - started,
                    )
                )
            except SessionError as error:
                findings.append(Finding(server=name, fault=str(error)))
    return findings
