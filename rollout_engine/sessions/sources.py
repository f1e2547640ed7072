"""Where the sessions of one server come from, whichever way they are made.

Invariant: a server is started and examined once, at its first use, and what was found decides how all its sessions are
made; a host never changes its mind silently.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from rollout_engine.sessions.errors import ServerStartFailed
from rollout_engine.sessions.links import Link
from rollout_engine.sessions.results import Mode, ToolSpec
from rollout_engine.sessions.servers import ServerSpec

HASH_SEED = "0"
CALLERS_PATH = "ENDSTATE_CALLERS_PYTHONPATH"


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


def not_started(spec: ServerSpec, error: Exception) -> ServerStartFailed:
    return ServerStartFailed(f"server {spec.name} can't be started: {error}", server=spec.name)


def environment(spec: ServerSpec, defaults: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """The host's environment with the server's own entries; the hash seed pinned so that set order can be repeated.

    ``PYTHONPATH`` is the caller's where ``bin/_python`` has put this repository in its place: a server's own packages
    may have the names of ours.
    A tool that raises costs FastMCP 70 ms of CPU where it draws the traceback for a terminal: plain ones are for logs.
    """
    fastmcp = {"FASTMCP_LOG_LEVEL": "WARNING", "FASTMCP_ENABLE_RICH_TRACEBACKS": "false"}
    inherited = dict(os.environ)
    if CALLERS_PATH in inherited:
        inherited["PYTHONPATH"] = inherited.pop(CALLERS_PATH)
        if not inherited["PYTHONPATH"]:
            del inherited["PYTHONPATH"]
    return {"PYTHONHASHSEED": HASH_SEED, **fastmcp, **defaults, **inherited, **spec.env}
