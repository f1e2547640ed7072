"""Servers over HTTP, by the SDK's client."""

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rollout_engine.sessions import (
    CannotBranch,
    HostLimits,
    ResultTooLarge,
    ServerSpec,
    ServerStartFailed,
    SessionClosed,
    SessionDied,
    SessionHost,
    SessionTimeout,
)

LIMITS = HostLimits(start_timeout=20, call_timeout=20, close_timeout=2, result_bytes=100_000)


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@pytest.fixture(params=["streamable-http", "sse"])
def spec(request):
    port = free_port()
    command = [sys.executable, str(Path(__file__).parent / "servers" / "over_http.py"), str(port), request.param]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while True:
        with socket.socket() as sock:
            if not sock.connect_ex(("127.0.0.1", port)):
                break
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    path = "/mcp" if request.param == "streamable-http" else "/sse"
    yield ServerSpec(name="far", kind="remote", endpoint=f"http://127.0.0.1:{port}{path}", transport=request.param)
    process.kill()
    process.wait()


async def test_a_remote_server(spec):
    async with SessionHost({"far": spec}, LIMITS) as host:
        mode = await host.examine("far")
        assert mode.name == "remote" and spec.endpoint in mode.reason and not mode.clones
        async with host.open({"far": {"a": 1}}) as session, host.open({"far": {}}) as other:
            assert session.init_result == {"far": {"got": 1}}
            assert sorted(tool.name for tool in session.tools) == ["add", "big", "exit", "fail", "hang"]
            assert (await session.call("add", {"a": 1, "b": 2})).text == "3"
            assert (await session.call("fail", {})).is_error
            assert (await session.call("add", {"a": "no number", "b": 2})).is_error
            with pytest.raises(CannotBranch, match="its state is on another machine"):
                async with session.branch():
                    pass
            with pytest.raises(SessionTimeout, match="did not answer tool hang within 0.3 s"):
                await session.call("hang", {}, timeout=0.3)
            with pytest.raises(SessionClosed):
                await session.call("add", {"a": 1, "b": 2})
            assert (await other.call("add", {"a": 1, "b": 2})).text == "3"
            assert await other.effects() == {"far": {}}
            with pytest.raises(ResultTooLarge):
                await other.call("big", {"bytes": 200_000})
        assert other.usage["far"].cpu == 0
        async with host.template({"far": {}}) as template, template.clone() as clone:
            assert template.reason == "its state is on another machine"
            with pytest.raises((SessionDied, SessionTimeout)):
                await clone.call("exit", {}, timeout=5)


async def test_a_remote_server_that_is_not_there():
    spec = ServerSpec(
        name="far", kind="remote", endpoint=f"http://127.0.0.1:{free_port()}/mcp", transport="streamable-http"
    )
    async with SessionHost({"far": spec}, LIMITS) as host:
        with pytest.raises(ServerStartFailed, match="server far at http://127.0.0.1"):
            async with host.open({"far": {}}):
                pass
