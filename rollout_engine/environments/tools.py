"""Typed tools: one function serves the MCP server and the synchronous backend.

Invariant: a tool is a plain function ``(db, **typed parameters) -> dict``. Its parameters are checked by
one strict model derived from its signature, whichever way it is called, and its result has one text.
What an agent can get wrong is a tool error with a short text; anything else that goes wrong is a crash
of the environment (:class:`BackendError`).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.tools import Tool
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, CallToolResult, TextContent
from pydantic import ValidationError

from rollout_engine.errors import BackendError


class ToolFailure(Exception):
    """The tool refuses: its text, from the domain's closed set of phrases, is what the agent reads."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the agent sees of a call."""

    text: str
    is_error: bool = False


def encode_result(result: Mapping[str, Any]) -> str:
    """Compact JSON, keys in the order given. Columns that are null are left out."""
    present = {key: value for key, value in result.items() if value is not None}
    return json.dumps(present, separators=(",", ":"), ensure_ascii=False)


def failure(phrase: str) -> ToolResult:
    """A tool error."""
    return ToolResult(encode_result({"error": phrase}), is_error=True)


UNKNOWN_TOOL = failure("unknown tool")


class EpisodeTool(Tool):
    """An MCP tool that acts on the backend of the connection it is called through."""

    @classmethod
    def of(cls, function: Callable[..., Mapping[str, Any]]) -> EpisodeTool:
        """From ``function(db, …)``; the docstring is the description, the annotations the JSON schema."""
        tool = cls.from_function(function, context_kwarg="db", structured_output=False)
        _simplify(tool.parameters)
        tool.parameters["additionalProperties"] = False
        return tool

    def execute(self, db: sqlite3.Connection, arguments: Mapping[str, Any]) -> ToolResult:
        """Check the arguments and run in one transaction, which a tool error rolls back.

        Raises :class:`BackendError` when the tool crashes.
        """
        properties = self.parameters["properties"]
        for name in arguments:
            if name not in properties:
                return failure("unknown parameter")
        for name in self.parameters.get("required", ()):
            if name not in arguments:
                return failure("missing parameter")
        try:
            checked = self.fn_metadata.arg_model.model_validate(dict(arguments), strict=True)
        except ValidationError:
            return failure("bad value")
        try:
            db.execute("BEGIN")
            try:
                result = self.fn(db, **checked.model_dump_one_level())
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")
        except ToolFailure as refusal:
            return failure(str(refusal))
        except Exception as crash:
            raise BackendError(f"tool {self.name} crashed: {type(crash).__name__}: {crash}") from crash
        return ToolResult(encode_result(result))

    async def run(self, arguments: dict[str, Any], context: Context, convert_result: bool = False) -> CallToolResult:
        """Serve an MCP call. A crash is a protocol error, so that no client takes it for a tool error."""
        backend = context.request_context.lifespan_context
        try:
            result = backend.call(self.name, arguments)
        except BackendError as crash:
            raise MCPError(code=INTERNAL_ERROR, message=str(crash)) from crash
        return CallToolResult(content=[TextContent(type="text", text=result.text)], is_error=result.is_error)

    def describe(self) -> dict[str, Any]:
        """Name, description and parameters, as a chat template's tools block wants them."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}


def _simplify(schema: Any) -> None:
    """Drop pydantic's titles: they say nothing and cost prompt tokens."""
    schema.pop("title", None)
    for child in schema.get("properties", {}).values():
        child.pop("title", None)
