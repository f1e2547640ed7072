"""A client of the app over a scripted host, without sockets."""

import sys
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from rollout_engine.sessions.proxy.app import proxy_app

sys.path.insert(0, str(Path(__file__).parent))
from scripted_host import Host  # noqa: E402


class ProxyClient:
    def __init__(self, http, host):
        self.http, self.host = http, host

    async def post(self, path, headers=None, **body):
        """Status and envelope."""
        reply = await self.http.post(path, json=body, headers=headers)
        return reply.status_code, reply.json()

    async def create(self, session_id="s", tools=("write", "wait", "crash", "fail"), config=None, **more):
        configs = {"notes": config or {}}
        body = {"session_id": session_id, "server_config": configs, "available_tools": tools, **more}
        return await self.post("/session_create", **body)

    async def call(self, tool, session_id="s", call_id=None, **arguments):
        more = {} if call_id is None else {"call_id": call_id}
        return await self.post("/call_tool", session_id=session_id, tool_name=tool, arguments=arguments, **more)


@pytest.fixture
def proxy():
    """``async with proxy(room=…, key=…) as client``."""

    @asynccontextmanager
    async def open_proxy(room=10, **options):
        host = Host(room)
        async with proxy_app(host, **options) as app:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://proxy", timeout=600) as http:
                yield ProxyClient(http, host)

    return open_proxy
