"""A server that is already running and speaks HTTP.

python over_http.py PORT streamable-http|sse
"""

import json
import os
import sys
import time

from mcp.server.mcpserver import MCPServer

server = MCPServer("http")


@server.tool(name="__reserved__init")
async def init(config: dict) -> str:
    return json.dumps({"status": "ok", "got": len(config)})


@server.tool()
async def add(a: int, b: int) -> str:
    """Add."""
    return str(a + b)


@server.tool()
async def fail() -> str:
    raise ValueError("as asked")


@server.tool()
async def big(bytes: int) -> str:
    return "x" * bytes


@server.tool()
def hang() -> str:
    time.sleep(30)
    return "late"


@server.tool()
async def exit() -> str:
    os._exit(3)


if __name__ == "__main__":
    server.run(sys.argv[2], host="127.0.0.1", port=int(sys.argv[1]))
