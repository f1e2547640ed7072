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
    """Tools for a template, from either shape: ``{"name", …}`` or ``{"type": "function", "function": {…}}``."""
    wrapped = [
        dict(tool) if "function" in tool else {"type": "function", "function": dict(tool)} for tool in tools or ()
    ]
    return wrapped or None
