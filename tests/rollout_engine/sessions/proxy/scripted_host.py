"""A session host in memory: one server, ``notes``, whose tools do what a test needs."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import trio

from rollout_engine.sessions.errors import HostFull, InitFailed, SessionDied, SessionTimeout, UnknownTool
from rollout_engine.sessions.results import CallResult, ToolSpec

SCHEMA = {
    "title": "Arguments",
    "type": "object",
    "properties": {"text": {"title": "Text", "$ref": "#/$defs/Line"}},
    "$defs": {"Line": {"title": "Line", "type": "string"}},
}
NAMES = ("write", "wait", "crash", "fail", "picture", "silent")
HIDDEN = "erase"


def text(value, is_error=False):
    return CallResult(value, [{"type": "text", "text": value}], is_error)


class Session:
    told = ""
    """What it says of its effects, where that is something else."""

    def __init__(self, host, configs, tools):
        self.host = host
        self.written = list(configs["notes"].get("written", []))
        shown = NAMES if tools is None else tools
        self.tools = [ToolSpec(name, f"To {name}.", SCHEMA, "notes") for name in NAMES if name in shown]
        self.missing = tuple(name for name in tools or () if name not in NAMES)
        self.init_result = {"notes": {"count": len(self.written)}}

    async def call(self, name, arguments, timeout=None):
        self.host.calls.append((name, arguments))
        match name:
            case "write":
                await trio.sleep(arguments.get("seconds", 0))
                self.written.append(arguments["text"])
                return text(json.dumps({"count": len(self.written)}))
            case "wait":
                with trio.move_on_after(timeout):
                    await trio.sleep(arguments["seconds"])
                    return text("waited")
                raise SessionTimeout("server notes: wait took too long", server="notes")
            case "crash":
                raise SessionDied("server notes ended by itself", server="notes")
            case "fail":
                return text("no such note", is_error=True)
            case "picture":
                return CallResult("", [{"type": "image", "data": "", "mimeType": "image/png"}])
            case "silent":
                return CallResult("", [])

    async def call_on(self, server, name, arguments, timeout=None):
        if (server, name) != ("notes", HIDDEN):
            raise UnknownTool(f"server {server} has no tool {name!r}")
        self.written.clear()
        return text("erased")

    async def effects(self, timeout=None):
        return {"notes": {"written": self.written}}

    async def told_effects(self, timeout=None):
        return {"notes": text(self.told or json.dumps({"written": self.written}))}


class Template:
    def __init__(self, session, clones):
        self.reason = "" if clones else "it holds a thread"
        self.session = session
        self.dead = False

    @asynccontextmanager
    async def clone(self, seed=0):
        if self.dead:
            raise SessionDied("server notes ended by itself", server="notes")
        host = self.session.host
        host.cloned.append(seed)
        try:
            yield Session(host, {"notes": {"written": self.session.written}}, None)
        finally:
            host.cloned.remove(seed)


class Host:
    """``room`` sessions at most; ``opened``, ``closed``, ``cloned`` and ``calls`` as they happened."""

    servers = {"notes": None}

    def __init__(self, room=10, clones=True):
        self.room, self.clones = room, clones
        self.opened, self.closed, self.calls, self.cloned, self.templates = [], [], [], [], []

    @asynccontextmanager
    async def template(self, configs, seed=0, tools=None):
        async with self.open(configs, seed, tools) as session:
            self.templates.append(Template(session, self.clones))
            yield self.templates[-1]

    @asynccontextmanager
    async def open(self, configs, seed=0, tools=None, session_id=None):
        if len(self.opened) - len(self.closed) >= self.room:
            raise HostFull("no room for a session")
        config = configs["notes"]
        if config.get("broken"):
            raise InitFailed("server notes refused its init: broken", server="notes")
        await trio.sleep(config.get("slow", 0))
        self.opened.append((session_id, seed))
        try:
            yield Session(self, configs, tools)
        finally:
            self.closed.append(session_id)
