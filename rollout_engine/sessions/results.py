"""What the session host hands out: plain frozen values without behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as its server describes it. ``input_schema`` is a JSON Schema object."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    server: str


@dataclass(frozen=True, slots=True)
class CallResult:
    """A tool's answer. ``is_error`` is the tool's own error flag: the policy caused it, so it is no exception."""

    text: str
    """Of the first content block: its text, or the block as JSON where it isn't text, or empty."""
    content: list[dict[str, Any]]
    is_error: bool = False
    structured: Any = None


@dataclass(frozen=True, slots=True)
class Mode:
    """How a server's sessions are made, and why. ``clones``: a live session can be cloned; ``note`` says why not."""

    name: Literal["fork", "spawn", "remote"]
    reason: str
    clones: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """What one server of a session used, its own children included. CPU in seconds, memory in bytes.

    ``peak_memory`` is the peak of resident memory, which counts pages shared with siblings too. Nothing is known of a
    remote server: zeros.
    """

    cpu: float = 0.0
    peak_memory: int = 0


class _CallToolResult(msgspec.Struct):
    content: list[dict[str, Any]] | None = None
    isError: bool | None = None
    structuredContent: Any = None


class _Tool(msgspec.Struct):
    name: str
    description: str | None = None
    inputSchema: dict[str, Any] | None = None


class _ToolPage(msgspec.Struct):
    tools: list[_Tool] = []
    nextCursor: str | None = None


def unsendable(error: ValueError) -> CallResult:
    """What a call comes to whose arguments can't be written as JSON: the caller's doing, as with a tool's own error."""
    text = f"the arguments can't be sent as JSON: {error}"
    return CallResult(text, [{"type": "text", "text": text}], is_error=True)


def call_result(result: Any) -> CallResult:
    """A CallToolResult object of the protocol as a :class:`CallResult`. Raises ValueError where it is none."""
    told = msgspec.convert(result, _CallToolResult)
    content = told.content or []
    first = content[0] if content else {}
    text = first.get("text") or "" if first.get("type", "text") == "text" else msgspec.json.encode(first).decode()
    if not isinstance(text, str):
        raise ValueError(f"Expected `str`, got `{type(text).__name__}` - at `$.content[0].text`")
    return CallResult(text, content, bool(told.isError), told.structuredContent)


def tool_page(result: Any, server: str) -> tuple[dict[str, ToolSpec], str | None]:
    """A ListToolsResult object of the protocol as tools by name and the cursor of the next page, if any.

    Raises ValueError where it is none.
    """
    page = msgspec.convert(result, _ToolPage)
    tools = {}
    for tool in page.tools:
        schema = tool.inputSchema or {}
        if not isinstance(schema.get("properties", {}), dict):
            raise ValueError(f"the properties of tool {tool.name} are no object")
        tools[tool.name] = ToolSpec(tool.name, tool.description or "", schema, server)
    return tools, page.nextCursor
