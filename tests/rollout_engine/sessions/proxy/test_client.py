"""The client of a Session Proxy: over our own app without sockets, and what it makes of a bad answer."""

from contextlib import asynccontextmanager

import httpx
import pytest
import trio
from scripted_host import Host

from rollout_engine.sessions.errors import (
    CannotBranch,
    HostFull,
    InitFailed,
    ResultTooLarge,
    ServerStartFailed,
    SessionClosed,
    SessionDied,
    SessionError,
    SessionTimeout,
    UnknownTool,
)
from rollout_engine.sessions.proxy.app import proxy_app
from rollout_engine.sessions.proxy.client import ProxyHost, ProxyLimits

NOTES = {"notes": {}}


@asynccontextmanager
async def proxy_host(host=None, key=None, given=None, ranking=None, **limits):
    """A ProxyHost whose requests go to an app over ``host``, and what the app saw of them."""
    async with proxy_app(host or Host(), key=key, ranking=ranking) as app:
        async with ProxyHost("http://proxy", given, limits=ProxyLimits(**limits)) as client:
            client._client._transport = httpx.ASGITransport(app)
            yield client


@asynccontextmanager
async def answering(handle, **limits):
    """A ProxyHost that is answered by a function of the request."""
    async with ProxyHost("http://proxy", limits=ProxyLimits(**limits)) as client:
        client._client._transport = httpx.MockTransport(handle)
        yield client


async def test_a_session_elsewhere_is_used_as_one_here():
    host = Host()
    async with proxy_host(host, ranking="bm25") as client:
        async with client.open({"notes": {"written": ["a"]}}, seed=7, tools=["write", "fail"]) as session:
            assert host.opened == [(session.id, 7)] and session.init_result == {"notes": {"count": 1}}
            assert session.ranking == "bm25"
            assert [(tool.name, tool.server) for tool in session.tools] == [("write", "notes"), ("fail", "notes")]
            result = await session.call("write", {"text": "b"})
            assert (result.text, result.is_error) == ('{"count": 2}', False)
            assert (await session.call("fail", {})).is_error
            assert (await session.call_on("notes", "erase", {})).text == "erased"
            assert await session.effects() == {"notes": {"written": []}}
            with pytest.raises(UnknownTool):
                await session.call("wait", {})
            with pytest.raises(UnknownTool):
                await session.call_on("notes", "none", {})
            with pytest.raises(UnknownTool):
                await session.call_on("none", "erase", {})
            with pytest.raises(CannotBranch):
                async with session.branch():
                    pass
            assert await session.effects() == {"notes": {"written": []}}
        assert host.closed == [session.id]
        async with client.open(NOTES) as session:
            assert len(session.tools) == 6
            picture = await session.call("picture", {})
            assert picture.content[0]["type"] == "image" and (await session.call("silent", {})).content == []


async def test_clones_of_a_template_are_opened_afresh():
    host = Host()
    async with proxy_host(host) as client, client.template(NOTES, tools=["write"]) as template:
        assert "no cloning" in template.reason
        async with template.clone(seed=1) as one, template.clone(seed=2) as other:
            await one.call("write", {"text": "a"})
            assert (await other.effects(), len(one.tools)) == ({"notes": {"written": []}}, 1)
    assert [seed for _, seed in host.opened] == [1, 2] and len(host.closed) == 2


async def test_a_refused_init_is_named_and_leaves_nothing():
    host = Host()
    async with proxy_host(host) as client:
        with pytest.raises(InitFailed, match="refused its init: broken"):
            async with client.open({"notes": {"broken": True}}):
                pass
        with pytest.raises(UnknownTool, match="Tool dance does not exist"):
            async with client.open(NOTES, tools=["dance"]):
                pass
        with pytest.raises(InitFailed, match="Server none does not exist"):
            async with client.open({"none": {}}):
                pass
    assert len(host.opened) == len(host.closed)


async def test_a_call_that_times_out_ends_the_session(autojump_clock):
    host = Host()
    async with proxy_host(host, call=3) as client:
        async with client.open(NOTES) as session:
            with pytest.raises(SessionTimeout, match="timed out after 3.0 seconds"):
                await session.call("wait", {"seconds": 5})
            with pytest.raises(SessionClosed, match="timed out"):
                await session.call("write", {"text": "a"})
        async with client.open(NOTES) as session:
            with pytest.raises(SessionTimeout, match="within 1 s"):
                await session.call("wait", {"seconds": 2}, timeout=1)
    assert host.closed == [session_id for session_id, _ in host.opened] and len(host.calls) == 2


async def test_a_server_that_dies_ends_the_session():
    async with proxy_host() as client, client.open(NOTES) as session:
        with pytest.raises(SessionDied, match="ended by itself"):
            await session.call("crash", {})
        with pytest.raises(SessionClosed):
            await session.effects()


async def test_room_is_waited_for_within_a_bound(autojump_clock):
    async with proxy_host(Host(room=1), open=10) as client:
        async with client.open(NOTES):
            with pytest.raises(HostFull, match="no room within 10 s"):
                async with client.open(NOTES):
                    pass
        async with trio.open_nursery() as nursery:

            async def hold(*, task_status):
                async with client.open(NOTES):
                    task_status.started()
                    await trio.sleep(5)

            await nursery.start(hold)
            start = trio.current_time()
            async with client.open(NOTES):
                assert 5 <= trio.current_time() - start < 7


async def test_an_opening_that_is_given_up_is_destroyed(autojump_clock):
    host = Host()
    async with proxy_host(host, open=5) as client:
        with pytest.raises(SessionTimeout, match="session was not open after 5"):
            async with client.open({"notes": {"slow": 60}}):
                pass
    assert len(host.opened) == len(host.closed)


async def test_a_proxy_that_does_not_keep_the_bound_is_given_up(autojump_clock):
    calls = []

    async def handle(request):
        calls.append(request.url.path)
        if request.url.path == "/session_create":
            await trio.sleep(60)
        return public([])(request)

    async with answering(handle, open=5, margin=2) as client:
        with pytest.raises(SessionTimeout, match="session_create did not answer within 7 s"):
            async with client.open(NOTES):
                pass
    assert calls == ["/session_create", "/session_destroy"]


async def test_the_key():
    async with proxy_host(key="k", given="k") as client, client.open(NOTES):
        pass
    async with proxy_host(key="k", given="wrong") as client:
        with pytest.raises(ServerStartFailed, match="refused the key"):
            async with client.open(NOTES):
                pass


async def test_no_proxy_there():
    async with ProxyHost("http://127.0.0.1:9") as client:
        with pytest.raises(ServerStartFailed, match="http://127.0.0.1:9/session_create: ConnectError"):
            async with client.open(NOTES):
                pass


@pytest.mark.parametrize("content", [b"Internal Server Error", b"[]", b'{"success": true}'])
async def test_an_answer_that_is_none(content):
    async with answering(lambda request: httpx.Response(500, content=content)) as client:
        with pytest.raises(ServerStartFailed, match="HTTP 500, no answer of a Session Proxy"):
            async with client.open(NOTES):
                pass


def public(calls, **answers):
    """A public proxy in a few lines: it knows nothing of kinds, and its tools have no servers."""

    def handle(request):
        calls.append(request.url.path)
        status, kind, value = {
            "/session_create": (200, "object", {"notes": {}}),
            "/list_tools": (200, "object", {"tools": {"write": {"description": None, "inputSchema": {}}}}),
            "/session_destroy": (200, "string", "Ok"),
            **answers,
        }[request.url.path]
        body = {"success": status == 200, "content": {"type": kind, "value": value}}
        return httpx.Response(status, json=body)

    return handle


@pytest.mark.parametrize(
    "answer, outcome",
    [
        ((504, "string", "Tool call timed out after 120.0 seconds"), SessionTimeout),
        ((400, "string", "Connection closed"), SessionDied),
        ((400, "string", "Tool notes > erase does not exist"), UnknownTool),
    ],
)
async def test_what_the_public_proxy_answers(answer, outcome):
    calls = []
    async with answering(public(calls, **{"/call_tool": answer})) as client, client.open(NOTES) as session:
        assert [(tool.name, tool.description, tool.server) for tool in session.tools] == [("write", "", "notes")]
        assert session.ranking is None
        with pytest.raises(SessionError) as raised:
            await session.call("write", {})
        assert raised.type is outcome
    assert calls == ["/session_create", "/list_tools", "/call_tool", "/session_destroy"]


@pytest.mark.parametrize(
    "path, answer",
    [
        ("/session_create", (200, "object", ["notes"])),
        ("/list_tools", (200, "object", {})),
        ("/list_tools", (200, "object", {"tools": {"write": {"description": "no schema"}}})),
        ("/call_tool", (200, "object", {"text": 3})),
        ("/get_effects", (200, "string", "{}")),
    ],
)
async def test_a_success_of_another_shape_ends_the_session(path, answer):
    calls = []
    async with answering(public(calls, **{path: answer})) as client:
        with pytest.raises(SessionDied, match=f"http://proxy{path}: no answer of a Session Proxy: Expected|Object"):
            async with client.open(NOTES) as session:
                if path == "/get_effects":
                    await session.effects()
                else:
                    await session.call("write", {})
    assert calls[-1] == "/session_destroy"


@pytest.mark.parametrize("value", ["\ud800", object()])
async def test_arguments_that_cannot_be_sent_are_the_callers_doing(value):
    calls = []
    async with answering(public(calls, **{"/call_tool": (200, "string", "ok")})) as client:
        async with client.open(NOTES) as session:
            refused = await session.call("write", {"text": value})
            assert refused.is_error and "can't be sent as JSON" in refused.text and "/call_tool" not in calls
            assert (await session.call("write", {"text": "x"})).text == "ok"
        with pytest.raises(ServerStartFailed, match="the request can't be sent as JSON"):
            async with client.open({"notes": {"text": value}}):
                pass


async def test_an_answer_is_bounded():
    answer = (200, "string", "x" * 2000)
    async with answering(public([], **{"/call_tool": answer}), result_bytes=1000) as client:
        async with client.open(NOTES) as session:
            with pytest.raises(ResultTooLarge, match="longer than 1000 bytes"):
                await session.call("write", {})


async def test_a_lost_connection_is_not_sent_again():
    calls = []

    def handle(request):
        if request.url.path == "/call_tool":
            calls.append(request)
            raise httpx.ReadError("gone", request=request)
        return public([])(request)

    async with answering(handle) as client, client.open(NOTES) as session:
        with pytest.raises(SessionDied, match="ReadError: gone"):
            await session.call("write", {})
    assert len(calls) == 1
