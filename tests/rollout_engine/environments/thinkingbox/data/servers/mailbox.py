"""A second small MCP server: letters that were sent. Its init takes no settings that matter."""

from __future__ import annotations

import json
from typing import Any

from mcp.server import MCPServer

server = MCPServer("mailbox", log_level="ERROR")
sent: list[dict[str, str]] = []


@server.tool(structured_output=False)
def send_letter(to: str, text: str) -> str:
    """Send a letter."""
    sent.append({"to": to, "text": text})
    return json.dumps({"sent": len(sent)})


@server.tool(structured_output=False)
def hand_over() -> str:
    """Give the guest to a colleague."""
    sent.append({"to": "colleague", "text": "yours"})
    return "{}"


@server.tool(name="__reserved__init", structured_output=False)
def init(config: dict[str, Any]) -> str:
    return "{}"


@server.tool(name="__reserved__geteffects", structured_output=False)
def effects() -> str:
    return json.dumps({"sent": sent})


@server.tool(name="__reserved__teardown", structured_output=False)
def teardown() -> str:
    return "{}"


if __name__ == "__main__":
    server.run()
