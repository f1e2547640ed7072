"""Every path of the protocol, over a scripted host."""

import json

import httpx
import pytest
import trio


def value(answer):
    status, envelope = answer
    assert (status, envelope["success"]) == (200, True), envelope
    return envelope["content"]["value"]


def refusal(answer):
    status, envelope = answer
    assert envelope["success"] is False and envelope["content"]["type"] == "string"
    return status, envelope["content"]["value"]


async def test_a_session_from_its_creation_to_its_end(proxy):
    async with proxy() as client:
        created = await client.create(config={"written": ["a"]}, seed=7)
        assert created[1]["content"] == {"type": "object", "value": {"notes": {"count": 1}}}
        assert client.host.opened == [("s", 7)]
        tools = value(await client.post("/list_tools", session_id="s"))["tools"]
        assert list(tools) == ["write", "wait", "crash", "fail"]
        plain = {"type": "object", "properties": {"text": {"type": "string"}}}
        assert tools["write"] == {"description": "To write.", "inputSchema": plain, "server": "notes"}
        called = await client.call("write", text="b")
        assert called == (
            200,
            {"success": True, "content": {"type": "string", "value": '{"count": 2}'}, "isError": False},
        )
        assert value(await client.post("/get_effects", session_id="s")) == {"notes": {"written": ["a", "b"]}}
        assert value(await client.post("/session_destroy", session_id="s")) == "Ok"
        assert client.host.closed == ["s"]
        assert refusal(await client.call("write", text="c")) == (400, "Session does not exist")


async def test_what_the_public_proxy_loses_is_kept_beside_what_it_says(proxy):
    async with proxy(ranking="bm25") as client:
        assert (await client.create(tools=None))[1]["ranking"] == "bm25"
        status, failed = await client.call("fail")
        assert status == 200 and failed["isError"] is True and failed["content"]["value"] == "no such note"
        assert (await client.call("picture"))[1]["blocks"][0]["type"] == "image"
        silent = (await client.call("silent"))[1]
        assert silent["blocks"] == [] and silent["content"]["value"] == ""
        assert len(value(await client.post("/list_tools", session_id="s"))["tools"]) == 6


async def test_health_and_information(proxy):
    async with proxy(key="k") as client:
        reply = await client.http.get("/health")
        assert (reply.status_code, reply.text) == (200, "OK")
    async with proxy() as client:
        await client.create()
        assert value(await client.post("/session_info", session_id="s")) == {}
        assert value(await client.post("/session_info", session_id="s", update={"a": 1})) == {"a": 1}
        assert value(await client.post("/session_info", session_id="s", update={"b": [2]})) == {"a": 1, "b": [2]}


async def test_any_tool_of_any_server_by_the_reserved_name(proxy):
    async with proxy() as client:
        await client.create(config={"written": ["a"]})
        asked = {"server_name": "notes", "tool_name": "erase", "arguments": {}}
        assert value(await client.call("__reserved__server_tool", **asked)) == "erased"
        status, told = refusal(await client.call("__reserved__server_tool", **asked | {"tool_name": "no"}))
        assert status == 400 and "has no tool 'no'" in told
        status, told = refusal(await client.call("__reserved__server_tool", server_name="notes"))
        assert status == 400 and "tool_name" in told
        assert value(await client.post("/get_effects", session_id="s")) == {"notes": {"written": []}}


async def test_json_only_and_the_log_of_calls(proxy):
    async with proxy() as client:
        await client.create(always_json_output=True, geteffects_proxy_info=True)
        assert value(await client.call("write", text="a")) == '{"count": 1}'
        assert value(await client.call("fail")) == '{"result": "no such note"}'
        effects = value(await client.post("/get_effects", session_id="s"))
        assert effects["__reserved__proxy_info"]["tool_calls"] == [
            {"tool_name": "write", "arguments": {"text": "a"}, "response": '{"count": 1}'},
            {"tool_name": "fail", "arguments": {}, "response": '{"result": "no such note"}'},
        ]


@pytest.mark.parametrize(
    "more, told",
    [
        ({"tools": ["write", "dance"]}, "Tool dance does not exist"),
        ({"config": {"broken": True}}, "server notes refused its init: broken"),
        ({"server_config": {"none": {}}}, "Server none does not exist"),
        ({"timeout": 0}, "Invalid input: timeout must be a positive number of seconds, not 0.0"),
        ({"config": {"slow": 9}, "timeout": 3}, "The session was not open after 3.0 seconds"),
        ({"available_tools": "write"}, "Invalid input: Expected `array | null`, got `str` - at `$.available_tools`"),
    ],
)
async def test_a_session_that_cannot_be_opened_leaves_nothing(proxy, autojump_clock, more, told):
    async with proxy() as client:
        assert refusal(await client.create(**more)) == (400, told)
        assert len(client.host.opened) == len(client.host.closed)
        assert (await client.create())[0] == 200
        assert refusal(await client.create()) == (400, "Session already exists")


@pytest.mark.parametrize("path", ["session_create", "call_tool", "session_info", "garbage_collect"])
@pytest.mark.parametrize(
    "body, told", [(b"{", "the body is no JSON"), (b"[]", "Expected `object`"), (b"{}", "missing")]
)
async def test_a_malformed_body_is_named(proxy, path, body, told):
    async with proxy() as client:
        reply = await client.http.post(f"/{path}", content=body)
        assert reply.status_code == 400 and told in reply.json()["content"]["value"]
        assert reply.json()["content"]["value"].startswith("Invalid input: ")


async def test_a_body_is_bounded(proxy, monkeypatch):
    monkeypatch.setattr("rollout_engine.sessions.proxy.app.LARGEST_BODY", 10)
    async with proxy() as client:
        assert refusal(await client.call("write"))[0] == 413


async def test_a_full_host_asks_to_come_again(proxy):
    async with proxy(room=1) as client:
        await client.create("a")
        reply = await client.http.post(
            "/session_create", json={"session_id": "b", "server_config": {"notes": {}}, "available_tools": []}
        )
        assert reply.status_code == 429 and reply.headers["retry-after"] == "2"
        await client.post("/session_destroy", session_id="a")
        assert (await client.create("b"))[0] == 200


async def test_a_call_that_times_out_is_not_carried_out_again(proxy, autojump_clock):
    async with proxy() as client:
        await client.create(timeout=5)
        assert value(await client.call("wait", seconds=4)) == "waited"
        assert refusal(await client.call("wait", seconds=6)) == (504, "Tool call timed out after 5.0 seconds")
        for _ in range(2):
            status, told = refusal(await client.call("wait", seconds=6))
            assert status == 400 and "timed out after 5.0 seconds" in told and "is not carried out again" in told
        assert refusal(await client.post("/get_effects", session_id="s"))[0] == 400
        assert len(client.host.calls) == 2 and client.host.closed == ["s"]
        assert value(await client.post("/session_destroy", session_id="s")) == "Ok"


async def test_a_server_that_dies_ends_its_session_only(proxy):
    async with proxy() as client:
        await client.create("a")
        await client.create("b")
        assert refusal(await client.call("crash", "a")) == (400, "server notes ended by itself")
        assert "The session has ended: server notes ended" in refusal(await client.call("write", "a", text="x"))[1]
        assert value(await client.call("write", "b", text="x")) == '{"count": 1}'


async def test_unknown_tools_are_refused_and_the_session_goes_on(proxy):
    async with proxy() as client:
        await client.create(tools=["write"])
        assert refusal(await client.call("wait", seconds=1)) == (400, "Tool wait does not exist")
        assert value(await client.call("write", text="x")) == '{"count": 1}'


async def test_calls_of_a_session_come_one_after_another_in_order(proxy, autojump_clock):
    async with proxy() as client:
        await client.create(timeout=10)
        answers = {}

        async def call(name, seconds):
            answers[name] = value(await client.call("write", text=name, seconds=seconds))

        async with trio.open_nursery() as nursery:
            for name, seconds in (("a", 3), ("b", 2), ("c", 1)):
                nursery.start_soon(call, name, seconds)
                await trio.sleep(0.1)
        assert trio.current_time() == pytest.approx(6)
        assert answers == {"a": '{"count": 1}', "b": '{"count": 2}', "c": '{"count": 3}'}


async def test_a_call_with_an_id_is_carried_out_once_also_while_it_runs(proxy, autojump_clock):
    async with proxy() as client:
        await client.create(timeout=10)
        answers = []

        async def call():
            answers.append(await client.call("write", call_id="1", text="a", seconds=2))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            nursery.start_soon(call)
        await call()
        assert [value(answer) for answer in answers] == ['{"count": 1}'] * 3 and len(client.host.calls) == 1
        assert value(await client.call("write", call_id="2", text="a")) == '{"count": 2}'
        assert refusal(await client.call("wait", call_id="3", seconds=11))[0] == 504
        assert refusal(await client.call("wait", call_id="3", seconds=11))[0] == 504


async def test_destroying_ends_a_call_in_progress(proxy, autojump_clock):
    async with proxy() as client:
        await client.create(timeout=100)
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def call():
                assert "it was destroyed" in refusal(await client.call("wait", seconds=50))[1]

            await trio.sleep(1)
            assert value(await client.post("/session_destroy", session_id="s")) == "Ok"
        assert trio.current_time() == 1


async def test_destroying_ends_an_opening(proxy, autojump_clock):
    async with proxy() as client:
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def create():
                told = refusal(await client.create(config={"slow": 50}))[1]
                assert told == "The session did not open: it was destroyed"

            await trio.sleep(1)
            assert refusal(await client.call("write", text="a")) == (400, "Session does not exist")
            assert value(await client.post("/session_destroy_all")) == "Ok"
        assert trio.current_time() == 1 and client.host.opened == []


async def test_idle_sessions_are_collected(proxy, autojump_clock):
    async with proxy(gc_minutes=10) as client:
        await client.create("old", timeout=10_000)
        await client.create("busy", timeout=10_000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: client.call("wait", "busy", seconds=1500))
            await trio.sleep(300)
            await client.create("new")
            collected = await client.post("/garbage_collect", inactivity_minutes=4)
            assert value(collected) == {"count": 1, "session_ids": ["old"]}
            await client.create("old")
            await trio.sleep(599)
            assert len(client.host.opened) - len(client.host.closed) == 3
            await trio.sleep(120)
            assert sorted(client.host.closed) == ["new", "old", "old"]


async def test_leaving_closes_what_is_open(proxy):
    async with proxy() as client:
        for name in "abc":
            await client.create(name)
        assert value(await client.post("/session_destroy_all")) == "Ok" and sorted(client.host.closed) == [
            "a",
            "b",
            "c",
        ]
        await client.create("d")
    assert client.host.closed[-1] == "d"


async def test_everything_but_health_takes_the_key(proxy):
    async with proxy(key="secret") as client:
        for path in ("session_create", "call_tool", "mcp", "nowhere"):
            for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "secret"}):
                reply = await client.http.post(f"/{path}", json={}, headers=headers)
                assert (reply.status_code, reply.json()) == (401, {"success": False, "error": "Unauthorized"})
        allowed = await client.http.post("/session_info", json={}, headers={"authorization": "Bearer secret"})
        assert allowed.status_code == 400


async def test_numbers_and_texts_pass_as_they_are(proxy):
    async with proxy() as client:
        odd = {"big": 2**80, "lone": "\ud800", "text": "é"}
        await client.create()
        content = json.dumps({"session_id": "s", "tool_name": "write", "arguments": odd})
        reply = await client.http.post("/call_tool", content=content)
        assert reply.status_code == 200 and client.host.calls == [("write", odd)]
        lone = json.dumps({"session_id": "s", "tool_name": "write", "arguments": {"text": "\ud800"}})
        await client.http.post("/call_tool", content=lone)
        effects = (await client.http.post("/get_effects", json={"session_id": "s"})).content
        assert json.loads(effects)["content"]["value"] == {"notes": {"written": ["é", "\ud800"]}}


@pytest.mark.parametrize("path", ["/session_create", "/call_tool", "/get_effects"])
@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"session_id": "s", "arguments": ' + b'{"a":' * 5000])
async def test_a_body_that_is_nested_too_deeply_is_refused(proxy, path, body):
    async with proxy() as client:
        reply = await client.http.post(path, content=body)
        told = "Invalid input: the body is no JSON: it is nested too deeply"
        assert reply.status_code == 400 and reply.json()["content"]["value"] == told


@pytest.mark.parametrize("path", ["/session_create", "/call_tool"])
async def test_a_client_that_goes_while_it_sends_is_no_fault_of_the_app(proxy, path):
    scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b""}
    messages = [{"type": "http.request", "body": b'{"sess', "more_body": True}, {"type": "http.disconnect"}]
    sent = []

    async def receive():
        return messages.pop(0)

    async def send(message):
        sent.append(message)

    async with proxy() as client:
        await client.http._transport.app(scope, receive, send)
    assert sent[0]["status"] == 400 and b"the body ended early" in sent[1]["body"]


async def test_a_lost_connection_does_not_carry_out_a_call_twice(proxy, autojump_clock):
    """The client goes away in mid-call and sends the same body again, as the public one does."""
    body = json.dumps({"session_id": "s", "tool_name": "write", "arguments": {"text": "a", "seconds": 3}}).encode()
    scope = {"type": "http", "method": "POST", "path": "/call_tool", "headers": [], "query_string": b""}
    async with proxy() as client:
        await client.create()
        app = client.http._transport.app

        async def lost():
            messages = [{"type": "http.request", "body": body}, {"type": "http.disconnect"}]

            async def receive():
                if len(messages) == 1:
                    await trio.sleep(1)
                return messages.pop(0)

            async def send(message):
                pass

            await app(scope, receive, send)

        await lost()
        again = await client.http.post("/call_tool", content=body)
        assert again.json()["content"]["value"] == '{"count": 1}' and len(client.host.calls) == 1
        another = await client.http.post("/call_tool", content=body)
        assert another.json()["content"]["value"] == '{"count": 2}'
        await lost()
        assert value(await client.call("write", text="b")) == '{"count": 4}'
        assert (await client.http.post("/call_tool", content=body)).json()["content"]["value"] == '{"count": 5}'


def mcp_client(client, session_id):
    headers = {"X-TB-Session-Id": session_id} if session_id else {}
    return httpx.AsyncClient(transport=client.http._transport, headers=headers, base_url="http://proxy")


async def rpc(http, method, params=None, path="/mcp"):
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-06-18"}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}
    reply = await http.post(path, json=body, headers=headers)
    return reply.json()


@pytest.mark.parametrize("path", ["/mcp", "/mcp/"])
async def test_a_session_as_an_mcp_server(proxy, path):
    async with proxy() as client, mcp_client(client, "s") as http:
        await client.create(always_json_output=True)
        started = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}}
        hello = await rpc(http, "initialize", started, path)
        assert hello["result"]["serverInfo"]["name"] == "SessionProxy" and "tools" in hello["result"]["capabilities"]
        tools = (await rpc(http, "tools/list", path=path))["result"]["tools"]
        assert [tool["name"] for tool in tools] == ["write", "wait", "crash", "fail"]
        assert tools[0]["inputSchema"] == {"type": "object", "properties": {"text": {"type": "string"}}}
        call = {"name": "write", "arguments": {"text": "a"}}
        called = (await rpc(http, "tools/call", call, path))["result"]
        assert called["structuredContent"] == {"count": 1} and called["content"][0]["text"] == '{"count": 1}'
        assert (await rpc(http, "tools/call", {"name": "fail"}, path))["result"]["isError"] is True
        assert "does not exist" in (await rpc(http, "tools/call", {"name": "no"}, path))["error"]["message"]


@pytest.mark.parametrize("told", ['{"a": {"b": [1, "é"]}}', '{"a": NaN}', '{"a": "\\ud800"}', "{}"])
async def test_effects_are_passed_on_as_they_are(proxy, monkeypatch, told):
    async with proxy() as client:
        await client.create()
        monkeypatch.setattr("scripted_host.Session.told", told)
        reply = await client.http.post("/get_effects", json={"session_id": "s"})
        assert repr(json.loads(reply.content)["content"]["value"]) == repr({"notes": json.loads(told)})


@pytest.mark.parametrize("told", ["[1]", "{", "nonsense"])
async def test_effects_that_are_no_object_are_named(proxy, monkeypatch, told):
    async with proxy() as client:
        await client.create()
        monkeypatch.setattr("scripted_host.Session.told", told)
        status, text = refusal(await client.post("/get_effects", session_id="s"))
        assert status == 400 and text == f"server notes: its effects are no JSON object: {told}"
        assert value(await client.call("write", text="a")) == '{"count": 1}'


async def test_an_mcp_request_without_its_session(proxy):
    async with proxy() as client, mcp_client(client, None) as none, mcp_client(client, "x") as other:
        assert (await rpc(none, "tools/list"))["error"]["message"] == "Missing X-TB-Session-Id header"
        assert (await rpc(other, "tools/call", {"name": "w"}))["error"]["message"] == "Session not found: x"
