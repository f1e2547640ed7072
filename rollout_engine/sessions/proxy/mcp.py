"""The proxy's sessions as MCP servers: streamable HTTP at ``/mcp``, the session named by the header X-TB-Session-Id.

Invariant: a request carries all that its answer needs, so that requests need not come to the same connection, and the
MCP session below a client is nothing but the proxy's session.
"""

from __future__ import annotations

import json
from typing import Any

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError

from rollout_engine.sessions.proxy.held import HeldSession
from rollout_engine.sessions.proxy.messages import ProxyError
from rollout_engine.sessions.proxy.registry import Registry
from rollout_engine.sessions.proxy.schemas import SchemaError

SESSION_HEADER = "X-TB-Session-Id"


def session_manager(registry: Registry, largest_body: int) -> StreamableHTTPSessionManager:
    """What answers ``/mcp`` while its ``run()`` is entered."""

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        try:
            described = _session(registry, context).tools()
        except SchemaError as error:
            raise MCPError(types.INTERNAL_ERROR, str(error)) from error
        tools = [
            types.Tool(name=name, description=tool["description"], input_schema=tool["inputSchema"])
            for name, tool in described.items()
        ]
        return types.ListToolsResult(tools=tools)

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            result = await _session(registry, context).call(params.name, params.arguments or {})
        except ProxyError as error:
            raise MCPError(types.INTERNAL_ERROR, str(error)) from error
        structured = result.structured if result.structured is not None else _object(result.text)
        told = {"content": result.content, "isError": result.is_error, "structuredContent": structured}
        return types.CallToolResult.model_validate(told)

    server = Server("SessionProxy", on_list_tools=list_tools, on_call_tool=call_tool)
    return StreamableHTTPSessionManager(server, stateless=True, json_response=True, max_request_body_size=largest_body)


def _session(registry: Registry, context: Any) -> HeldSession:
    name = context.request.headers.get(SESSION_HEADER)
    if not name:
        raise MCPError(types.INVALID_REQUEST, f"Missing {SESSION_HEADER} header")
    try:
        return registry.find(name)
    except ProxyError:
        raise MCPError(types.INVALID_REQUEST, f"Session not found: {name}") from None


def _object(text: str) -> dict[str, Any] | None:
    """A tool's text as structured content, where it is a JSON object."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
