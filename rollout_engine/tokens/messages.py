"""Messages and tools in the shape that chat templates expect.

Invariant: a template sees the Hugging Face / OpenAI shape and nothing of ours: ``role``, ``content``,
``reasoning_content``, ``tool_calls`` with arguments as a mapping, ``name``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from protocol.records import Message


def template_message(message: Message | Mapping[str, Any]) -> dict[str, Any]:
    """One message for a template. A refused call is written with no arguments."""
    if not isinstance(message, Message):
        return dict(message)
    out: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name is not None:
        out["name"] = message.name
    if message.reasoning is not None:
        out["reasoning_content"] = message.reasoning
    if message.calls:
        out["tool_calls"] = [
            {"type": "function", "function": {"name": call.name, "arguments": call.arguments or {}}}
            for call in message.calls
        ]
    return out


def template_tools(tools: Iterable[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Tools for a template, from any of the three shapes that :func:`tool_function` reads."""
    wrapped = [
        dict(tool) if "function" in tool else {"type": "function", "function": tool_function(tool)}
        for tool in tools or ()
    ]
    return wrapped or None


def tool_function(tool: Mapping[str, Any]) -> Any:
    """``{name, description, parameters}`` of a tool in that shape, in OpenAI's or as MCP lists it (``inputSchema``)."""
    if "function" in tool:
        return tool["function"]
    for key in ("inputSchema", "input_schema"):
        if key in tool and "parameters" not in tool:
            described = {"description": tool["description"]} if tool.get("description") is not None else {}
            return {"name": tool.get("name"), **described, "parameters": tool[key]}
    return dict(tool)
