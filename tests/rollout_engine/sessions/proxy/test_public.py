"""Against the public framework itself, where ENDSTATE_THINKINGBOX and ENDSTATE_THINKINGBOX_DATA name checkouts of it:
our client at their proxy, and their client at ours."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import trio
import yaml

from protocol.server import free_port
from rollout_engine.sessions.errors import InitFailed, SessionDied, UnknownTool
from rollout_engine.sessions.proxy.client import ProxyHost, ProxyLimits

NEEDED = ("ENDSTATE_THINKINGBOX", "ENDSTATE_THINKINGBOX_DATA")
pytestmark = pytest.mark.skipif(not all(map(os.environ.get, NEEDED)), reason=f"needs {' and '.join(NEEDED)}")

DATA = Path(os.environ.get("ENDSTATE_THINKINGBOX_DATA", ""))
PYTHON = Path(os.environ.get("ENDSTATE_THINKINGBOX_PYTHON", sys.executable))
SERVERS = DATA / "servers/servers.yaml"
PUBLIC = (PYTHON.parent / "tb", "mcp-start")
OURS = (sys.executable, "-m", "rollout_engine.cli.sessions", "serve", "--python", PYTHON)


@contextmanager
def proxy(command, tmp_path):
    """The URL of a proxy over the public servers."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    arguments = [*map(str, command), "--servers", str(SERVERS), "--port", str(port)]
    environment = os.environ | {"THINKINGBOX_DATA": str(DATA)}
    with (tmp_path / "log").open("wb") as log:
        with subprocess.Popen(arguments, stdout=log, stderr=log, env=environment) as process:
            try:
                yield url
            finally:
                process.terminate()


@pytest.fixture(params=[PUBLIC, OURS], ids=["public", "ours"])
def url(request, tmp_path):
    with proxy(request.param, tmp_path) as url:
        yield url


async def started(url):
    async with httpx.AsyncClient() as client:
        with trio.fail_after(60):
            while True:
                try:
                    if (await client.get(f"{url}/health")).text == "OK":
                        return
                except httpx.TransportError:
                    await trio.sleep(0.2)


async def test_our_client_at_either_proxy(url):
    await started(url)
    world = yaml.safe_load((DATA / "dataset/scenario/retail_banking_email.yaml").read_text())["world_state"]
    bank = {"online_banking": world["online_banking"]}
    async with ProxyHost(url, limits=ProxyLimits(call=30)) as host:
        async with host.open(world, tools=["get_accounts", "send_email"]) as session:
            assert sorted(tool.name for tool in session.tools) == ["get_accounts", "send_email"]
            assert all(tool.input_schema["type"] == "object" for tool in session.tools)
            result = await session.call("get_accounts", {})
            assert json.loads(result.text) and not result.is_error
            hidden = await session.call_on("online_banking", "__reserved__geteffects", {})
            effects = await session.effects()
            assert list(effects) == list(world) and len(world) == 2
            assert json.loads(hidden.text) == effects["online_banking"]
            with pytest.raises((UnknownTool, SessionDied), match="does not exist|has no tool"):
                await session.call_on("online_banking", "none", {})
        with pytest.raises((InitFailed, UnknownTool), match="Tool dance does not exist"):
            async with host.open(bank, tools=["dance"]):
                pass


def test_their_client_at_our_proxy_comes_to_the_same_rows(tmp_path):
    """``tb infer`` with their configuration, without an agent: verdicts and effects of the untouched state."""
    tests = tmp_path / "tests.yaml"
    tests.write_text(
        yaml.safe_dump(["banking.py:" + name for name in _names(DATA / "dataset/test_case/banking.py")][:2])
    )
    rows = {}
    for name, command in (("public", PUBLIC), ("ours", OURS)):
        with proxy(command, tmp_path) as url:
            trio.run(started, url)
            model = {"type": "aoai", "deployment": "none", "endpoint_url": "http://127.0.0.1:9/v1/chat/completions"}
            config = {"mcp_proxy": {"endpoint_url": url}, "judge_model": model}
            config["orchestrator"] = {"type": "thinkingbox", "agent_model": model}
            (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
            output = tmp_path / f"{name}.jsonl"
            command = [PYTHON.parent / "tb", "infer", "-c", tmp_path / "config.yaml", "-d", DATA / "dataset"]
            command += ["-a", "think", "--test-list", tests, "--skip-agent", "--no-test", "--dump", "testcontext"]
            subprocess.run([*command, "-o", output], check=True, capture_output=True, timeout=120)
            rows[name] = [json.loads(line) for line in output.read_text().splitlines()]
    for public, ours in zip(rows["public"], rows["ours"], strict=True):
        assert public["uid"] == ours["uid"] and not ours["is_system_error"]
        for key in ("effects", "init_result"):
            assert public["test_context"][key] == ours["test_context"][key]


def _names(path):
    return [line[4:].partition("(")[0] for line in path.read_text().splitlines() if line.startswith("def test_")]
