"""A small server with state: bookings by room. On the SDK's high-level API, synchronous tools included.

python bookings.py
"""

import json
import random

from mcp.server.mcpserver import MCPServer

server = MCPServer("bookings")
state = {"bookings": {}, "log": []}


@server.tool(name="__reserved__init")
def init(config: dict, session_id: str = "") -> str:
    if "refuse" in config:
        return json.dumps({"status": "error", "message": config["refuse"]})
    state["bookings"] = dict(config.get("bookings", {}))
    state["session_id"] = session_id
    return json.dumps({"status": "ok", "rooms": len(state["bookings"])})


@server.tool(name="__reserved__geteffects")
async def effects() -> str:
    return json.dumps(state)


@server.tool(name="__reserved__teardown")
async def teardown() -> str:
    return "{}"


@server.tool()
async def book(room: str, guest: str) -> str:
    """Book a room that is free."""
    if room in state["bookings"]:
        raise ValueError(f"room {room} is taken by {state['bookings'][room]}")
    state["bookings"][room] = guest
    state["log"].append(["book", room, guest])
    return json.dumps({"room": room, "guest": guest})


@server.tool()
def cancel(room: str) -> str:
    """Cancel a booking. A synchronous tool: the SDK may run it in a thread."""
    guest = state["bookings"].pop(room, None)
    state["log"].append(["cancel", room])
    return json.dumps({"room": room, "guest": guest})


@server.tool()
async def draw(count: int = 1) -> str:
    """Random numbers of the module-level generator."""
    return json.dumps([random.random() for _ in range(count)])


if __name__ == "__main__":
    server.run()
