"""What the session host hands out: plain frozen values without behaviour."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


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


def call_result(result: Mapping[str, Any]) -> CallResult:
    """A CallToolResult object of the protocol as a :class:`CallResult`."""
    content = result.get("content") or []
    first = content[0] if content else {}
    text = first.get("text") if first.get("type", "text") == "text" else json.dumps(first)
    return CallResult(text or "", content, bool(result.get("isError")), result.get("structuredContent"))
