"""A server without any SDK: newline JSON-RPC by hand, so that it starts in no time and misbehaves exactly as told.

    python plain.py [SHAPE]

SHAPE is what it does before it serves: ``thread``, ``socket``, ``file``, ``temp``, ``child``, ``print``, ``fail``,
``hang``, ``quit``; ``asyncio`` serves on an event loop started by asyncio.run, ``by-hand`` on one started otherwise.
"""

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

state = {"notes": []}
kept = []
TOOLS = (
    "__reserved__init __reserved__geteffects note draw exit crash hang spin big stray torn malformed foreign flood "
    "child ask fail pid orphan answer line"
).split()


def call(name, arguments):
    """The text of a tool's answer; None where there is no answer."""
    if name == "__reserved__init":
        config = arguments["config"]
        if config.get("hang"):
            time.sleep(3600)
        if config.get("exit"):
            print("out of order", file=sys.stderr, flush=True)
            os._exit(9)
        state["notes"] = list(config.get("notes", []))
        return json.dumps({"status": "no" if config.get("refuse") else "ok", "pid": os.getpid()})
    if name == "__reserved__geteffects":
        return json.dumps(state)
    if name == "note":
        state["notes"].append(arguments["text"])
        return json.dumps(state["notes"])
    if name == "draw":
        return json.dumps([random.random(), hash("text")])
    if name == "pid":
        return str(os.getpid())
    if name == "exit":
        print("I have had enough", file=sys.stderr, flush=True)
        os._exit(3)
    if name == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if name == "hang":
        time.sleep(3600)
    if name == "spin":
        while True:
            pass
    if name == "big":
        return "x" * arguments["bytes"]
    if name == "stray":
        write(arguments.get("text", "just a line") + "\n")
        return "done"
    if name == "torn":
        write("half a line")
        return "done"
    if name == "malformed":
        write('{"jsonrpc": "2.0", \n')
        return "done"
    if name == "foreign":
        write('{"hello": "world"}\n')
        return "done"
    if name == "flood":
        while True:
            write("all work and no play\n")
    if name in ("child", "orphan"):
        process = subprocess.Popen(["sleep", "3600"], start_new_session=name == "orphan", stdin=subprocess.DEVNULL)
        kept.append(process)
        return str(process.pid)
    if name == "ask":
        write(json.dumps({"jsonrpc": "2.0", "id": "mine", "method": arguments["method"]}) + "\n")
        return json.dumps(json.loads(sys.stdin.readline()))
    if name == "answer":
        return {"as": json.loads(arguments["result"])}
    if name == "line":
        write(arguments["line"] + "\n")
        return "done"
    if name == "fail":
        raise ValueError("as asked")
    raise AssertionError(name)


def write(text):
    sys.stdout.write(text)
    sys.stdout.flush()


def answer(line):
    message = json.loads(line)
    if "id" not in message:
        return
    method, params = message["method"], message.get("params") or {}
    reply = {"jsonrpc": "2.0", "id": message["id"]}
    if method == "initialize":
        reply["result"] = {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {},
            "serverInfo": {"name": "plain"},
        }
    elif method == "tools/list":
        # Two pages, because there may be any number of them.
        half = len(TOOLS) // 2
        names, more = (TOOLS[half:], {}) if params.get("cursor") else (TOOLS[:half], {"nextCursor": "2"})
        reply["result"] = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names], **more}
        reply["result"] |= json.loads(os.environ.get("LISTED", "{}"))
    elif method == "tools/call" and params["name"] in TOOLS:
        try:
            text = call(params["name"], params["arguments"])
            reply["result"] = text["as"] if isinstance(text, dict) else {"content": [{"type": "text", "text": text}]}
        except ValueError as error:
            reply["result"] = {"content": [{"type": "text", "text": str(error)}], "isError": True}
    else:
        reply["error"] = {"code": -32602, "message": f"no such thing: {params.get('name') or method}"}
    write(json.dumps(reply) + "\n")


def serve():
    while line := sys.stdin.readline():
        answer(line)


async def serve_on_a_loop():
    reader = asyncio.StreamReader(limit=1 << 26)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        answer(line)


def prepare(shape):
    if shape == "thread":
        threading.Thread(target=time.sleep, args=(3600,), daemon=True, name="watcher").start()
    elif shape == "socket":
        kept.extend(socket.socketpair())
    elif shape == "file":
        kept.append(open(__file__))
    elif shape == "temp":
        kept.append(tempfile.TemporaryDirectory())
    elif shape == "child":
        kept.append(subprocess.Popen(["sleep", "3600"], stdin=subprocess.DEVNULL))
    elif shape == "print":
        print("welcome", flush=True)
    elif shape == "fail":
        raise RuntimeError("no licence")
    elif shape == "hang":
        time.sleep(3600)
    elif shape == "quit":
        sys.exit(4)


if __name__ == "__main__":
    shapes = sys.argv[1:]
    for shape in shapes:
        prepare(shape)
    if "by-hand" in shapes:
        asyncio.new_event_loop().run_until_complete(serve_on_a_loop())
    elif "asyncio" in shapes:
        asyncio.run(serve_on_a_loop())
    else:
        serve()
