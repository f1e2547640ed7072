"""An episode's MCP session: a client connected in process to the domain's server.

Invariant: a session is entered and left in one task (rule 4) and is bound to one backend for its whole
life. A tool's own error is a result; a crash, a lost connection or an exceeded bound is a BackendError.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
from mcp.client.client import Client
from mcp.client.session import ClientSession
from mcp.shared.direct_dispatcher import DirectDispatcher
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolRequest, CallToolRequestParams, CallToolResult
from mcp_types.version import LATEST_MODERN_VERSION

from rollout_engine.environments.backend import Backend
from rollout_engine.environments.catalogue import domain
from rollout_engine.environments.domain import connecting
from rollout_engine.environments.schema import Snapshot
from rollout_engine.environments.task import Task
from rollout_engine.environments.tools import UNKNOWN_TOOL, ToolResult
from rollout_engine.errors import BackendError


class Session:
    """An open session. ``call_timeout`` bounds each call, in seconds."""

    def __init__(self, client: ClientSession, backend: Backend, names: frozenset[str], call_timeout: float) -> None:
        self._client = client
        self._backend = backend
        self._names = names
        self._call_timeout = call_timeout

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call a tool over MCP; raises :class:`BackendError`."""
        if name not in self._names:
            return UNKNOWN_TOOL
        request = CallToolRequest(params=CallToolRequestParams(name=name, arguments=dict(arguments)))
        try:
            with anyio.fail_after(self._call_timeout):
                # Not client.call_tool(): that lists all tools once a session to check output schemas.
                result = await self._client.send_request(request, CallToolResult)
        except TimeoutError as error:
            raise BackendError(f"tool {name} took over {self._call_timeout:g} s") from error
        except MCPError as error:
            raise BackendError(error.error.message) from error
        text = "".join(block.text for block in result.content if block.type == "text")
        return ToolResult(text, bool(result.is_error))

    def finish(self) -> Snapshot:
        """Close the backend to the agent, then read it."""
        return self._backend.finish()


@asynccontextmanager
async def open_session(task: Task, *, call_timeout: float = 10.0) -> AsyncIterator[Session]:
    """A fresh backend with the task's rows, and an MCP session bound to it.

    What the body raises comes out as it is. Raises :class:`rollout_engine.errors.ConfigurationError`
    when the rows do not fit the tables.
    """
    home = domain(task.domain)
    backend = Backend(home, task.rows)
    failure: Exception | None = None
    try:
        client = Client(home.server, mode=LATEST_MODERN_VERSION, cache=None)
        token = connecting.set(backend)
        async with client:
            connecting.reset(token)
            session = client.session
            try:
                yield Session(session, backend, frozenset(home.tool_map), call_timeout)
            except Exception as error:
                # Raised past the client, which owns a task group, it would come out as an exception group.
                failure = error
            ends = _hang_up(session)
        _untie(session, ends)
    finally:
        backend.close()
    if failure is not None:
        raise failure


def _hang_up(session: ClientSession) -> list[DirectDispatcher]:
    """Close the two ends of an in-process connection, so that their tasks end by themselves: a cancelled one leaves its
    exception in a cycle with its frame."""
    here = session._dispatcher
    ends = [end for end in (here, getattr(here, "_peer", None)) if isinstance(end, DirectDispatcher)]
    for end in ends:
        end.close()
    return ends


def _untie(session: ClientSession, ends: list[DirectDispatcher]) -> None:
    """Cut the cycles that a closed session lies in. Thousands of episodes otherwise leave millions of objects that only
    a full garbage collection finds, which holds up the event loop for seconds."""
    for part in (session, *ends):
        vars(part).clear()
