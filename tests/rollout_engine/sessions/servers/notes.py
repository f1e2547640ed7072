"""A server on the SDK's low-level API whose state is module globals, with tools that misbehave.

python notes.py
"""

import asyncio
import importlib
import json
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time

import httpx
import mcp.server.stdio
import mcp_types as types
from mcp.server.lowlevel.server import Server

state = {"notes": []}
kept = []
clients = {}
NAMES = (
    "__reserved__init __reserved__geteffects __reserved__teardown note in_thread draw pid print exit crash spin big "
    "keep_file keep_temp keep_thread keep_socket load loaded fetch fetch_async"
).split()


async def call(name, arguments):
    if name == "__reserved__init":
        state["notes"] = list(arguments["config"].get("notes", []))
        return {"status": "ok"}
    if name == "__reserved__geteffects":
        return state
    if name == "__reserved__teardown":
        return {}
    if name == "note":
        state["notes"].append(arguments["text"])
        return state["notes"]
    if name == "in_thread":
        # A worker thread stays behind, waiting for more.
        await asyncio.to_thread(state["notes"].append, arguments["text"])
        return state["notes"]
    if name == "draw":
        return [random.random(), random.random()]
    if name == "pid":
        return os.getpid()
    if name == "print":
        print("half a line", end="", flush=True)
        return "done"
    if name == "exit":
        print("I have had enough", file=sys.stderr, flush=True)
        os._exit(3)
    if name == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if name == "spin":
        while True:
            pass
    if name == "big":
        return "x" * arguments["bytes"]
    if name == "keep_file":
        kept.append(open(__file__))
    if name == "keep_temp":
        kept.append(tempfile.TemporaryDirectory())
    if name == "keep_thread":
        threading.Thread(target=time.sleep, args=(3600,), daemon=True, name="watcher").start()
    if name == "keep_socket":
        kept.append(socket.create_connection(("127.0.0.1", arguments["port"])))
    if name == "fetch":
        clients.setdefault(name, httpx.Client())
        return clients[name].get(arguments["url"]).text
    if name == "fetch_async":
        clients.setdefault(name, httpx.AsyncClient())
        return (await clients[name].get(arguments["url"])).text
    if name == "load":
        importlib.import_module(arguments["module"])
    if name == "loaded":
        return arguments["module"] in sys.modules
    return "kept"


async def on_list_tools(context, params):
    return types.ListToolsResult(
        tools=[types.Tool(name=name, description=f"the {name}", input_schema={"type": "object"}) for name in NAMES]
    )


async def on_call_tool(context, params):
    answer = await call(params.name, params.arguments or {})
    return types.CallToolResult(content=[types.TextContent(type="text", text=json.dumps(answer))])


async def main():
    server = Server("notes", on_list_tools=on_list_tools, on_call_tool=on_call_tool)
    async with mcp.server.stdio.stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(main())
