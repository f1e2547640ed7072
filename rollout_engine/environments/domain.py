"""A domain: tables, policy, tools and task families behind one MCP server.

Invariant: a domain is built once a process and never changes; all state of an episode lives in that
episode's :class:`Backend`, which the server finds through its connection's lifespan.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mcp.server.mcpserver import MCPServer

from rollout_engine.environments.families import Family
from rollout_engine.environments.schema import Schema
from rollout_engine.environments.tools import EpisodeTool

connecting: ContextVar[Any] = ContextVar("connecting")
"""The backend of the connection being opened: set by the task that opens it, read once by the lifespan."""


@dataclass(frozen=True)
class Domain:
    """``policy`` is the text for the system prompt, one rule a line."""

    name: str
    policy: str
    schema: Schema
    functions: tuple[Callable[..., Mapping[str, Any]], ...]
    families: tuple[Family, ...]

    @cached_property
    def tool_map(self) -> dict[str, EpisodeTool]:
        """Tools by name."""
        return {function.__name__: EpisodeTool.of(function) for function in self.functions}

    @cached_property
    def tools(self) -> list[dict[str, Any]]:
        """``{"name", "description", "parameters"}`` of each tool, as the server lists them."""
        return [tool.describe() for tool in self.tool_map.values()]

    @cached_property
    def server(self) -> MCPServer:
        """The one MCP server; each connection to it is bound to the backend in :data:`connecting`."""
        return MCPServer(
            self.name,
            instructions=self.policy,
            tools=list(self.tool_map.values()),
            lifespan=_bind_backend,
            # The SDK sets up the root logger; this is the level that it would have anyway.
            log_level="WARNING",
        )

    def __hash__(self) -> int:
        return hash(self.name)


@asynccontextmanager
async def _bind_backend(_: MCPServer) -> AsyncIterator[Any]:
    yield connecting.get()
