"""The stand-in over real connections, the relay to another Typesense, and a server of our own."""

import sys
from contextlib import suppress
from functools import partial

import httpx
import pytest
import trio
import trio.testing

from rollout_engine.sessions.search import service
from rollout_engine.sessions.search.http import Request, serve_connection
from rollout_engine.sessions.search.ranking import RANKING
from rollout_engine.sessions.search.server import SearchUnavailable
from rollout_engine.sessions.search.service import TYPESENSE, SearchLimits, open_search
from rollout_engine.sessions.search.standin import StandIn

SCHEMA = {"name": "kb", "fields": [{"name": "text", "type": "string"}]}
FAKE_SERVER = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

options = dict(argument.split("=", 1) for argument in sys.argv[1:])

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = b'{"ok": true}' if self.path == "/health" else self.headers["x-typesense-api-key"].encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass

if "--api-port" not in options:
    sys.exit("no port")
HTTPServer((options["--api-address"], int(options["--api-port"])), Handler).serve_forever()
"""


@pytest.fixture
def binary(tmp_path):
    """A typesense-server for our purposes: it takes its options and is well."""
    path = tmp_path / "typesense-server"
    path.write_text(f"#!{sys.executable}\n{FAKE_SERVER}")
    path.chmod(0o755)
    return path


async def free_port():
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        return listener.socket.getsockname()[1]


async def test_what_a_knowledge_server_asks_for():
    async with open_search(port=0) as search, httpx.AsyncClient(base_url=search.url) as client:
        assert search.ranking == RANKING
        assert (await client.get("/health")).json() == {"ok": True, "ranking": RANKING}
        assert (await client.get("/collections/kb")).status_code == 404
        assert (await client.post("/collections", json=SCHEMA)).status_code == 201
        assert (await client.post("/collections", json=SCHEMA)).status_code == 409
        assert (await client.get("/collections/kb")).json()["num_documents"] == 0
        for text in ("about refunds", "about ships"):
            made = await client.post("/collections/kb/documents", json={"id": text[6:], "text": text})
            assert (made.status_code, made.json()["text"]) == (201, text)
        lines = b'{"id": "ships", "text": "again"}\n{"id": "trains", "text": "more"}\nnonsense'
        imported = (await client.post("/collections/kb/documents/import", content=lines)).text.splitlines()
        assert [line[:16] for line in imported] == ['{"success": fals', '{"success": true', '{"success": fals']
        searches = [{"q": "refund", "query_by": "text"}, {"q": "x", "collection": "other"}]
        asked = await client.post("/multi_search", json={"searches": searches}, params={"collection": "kb"})
        found, missing = asked.json()["results"]
        assert [hit["document"]["id"] for hit in found["hits"]] == ["refunds"]
        assert missing == {"code": 404, "error": "No collection with name `other` found."}
        one = await client.get("/collections/kb/documents/search", params={"q": "ship", "query_by": "text"})
        assert one.json()["found"] == 1
        assert (await client.patch("/collections/kb/documents/ships", json={"text": "b"})).json()["text"] == "b"
        assert (await client.delete("/collections/kb/documents/ships")).status_code == 200
        assert (await client.get("/collections/kb/documents/ships")).status_code == 404
        assert [kept["num_documents"] for kept in (await client.get("/collections")).json()] == [2]
        assert (await client.delete("/collections/kb")).status_code == 200
        assert (await client.get("/collections")).json() == []


@pytest.mark.parametrize(
    "method, path, body, status, told",
    [
        ("POST", "/collections", b"{", 400, "Bad JSON"),
        ("POST", "/collections", b"[]", 400, "an object is expected"),
        ("POST", "/collections", b"{}", 400, "required"),
        ("POST", "/collections", b"[" * 100_000, 400, "Bad JSON"),
        ("POST", "/collections", b'{"name": "x", "fields": [3]}', 400, "must be an object with a `name`"),
        ("POST", "/collections", b'{"name": "x", "fields": [{"name": 3}]}', 400, "must be an object with a `name`"),
        (
            "POST",
            "/collections",
            b'{"name": "x", "fields": [{"name": "v", "embed": {"from": "text"}}]}',
            400,
            "`embed.from` of field `v` must be a list",
        ),
        ("POST", "/multi_search", b'{"searches": 3}', 400, "must be a list"),
        ("POST", "/multi_search", b'{"searches": [%s]}' % b",".join([b"{}"] * 51), 400, "limit_multi_searches"),
        ("PUT", "/aliases/x", b"", 404, "doesn't answer this"),
        ("PUT", "/collections/none", b"", 404, "No collection"),
    ],
)
async def test_a_call_that_cannot_be_answered_says_why(method, path, body, status, told):
    async with open_search(port=0) as search, httpx.AsyncClient(base_url=search.url) as client:
        reply = await client.request(method, path, content=body)
        assert reply.status_code == status and told in reply.json()["message"]


async def conversation(*sent, largest_body=1000):
    """What a connection answers to these bytes."""

    async def handle(request):
        return await standin.handle(request)

    standin = StandIn(lambda: 0.0, 1)
    ours, theirs = trio.testing.memory_stream_pair()
    received = b""
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_connection, theirs, 0, handle, largest_body)
            for data in sent:
                await ours.send_all(data)
            await ours.send_eof()
            async for data in ours:
                received += data
    return received


async def test_requests_follow_each_other_on_a_connection_however_they_are_cut():
    one = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
    assert (await conversation(one + one)).count(b"HTTP/1.1 200") == 2
    assert (await conversation(*[bytes([byte]) for byte in one])).count(b"HTTP/1.1 200") == 1


async def test_a_body_is_bounded_and_what_is_no_http_ends_the_connection():
    large = b"POST /collections HTTP/1.1\r\nhost: x\r\ncontent-length: 1001\r\n\r\n" + b"x" * 1001
    assert (await conversation(large)).startswith(b"HTTP/1.1 413")
    assert (await conversation(b"nonsense\r\n\r\n")).startswith(b"HTTP/1.1 400")
    assert b"Bad request target" in await conversation(b"GET //[ HTTP/1.1\r\nhost: x\r\n\r\n")


async def test_a_peer_that_waits_for_leave_gets_it():
    ours, theirs = trio.testing.memory_stream_pair()
    standin = StandIn(lambda: 0.0, 1)
    with trio.fail_after(5):
        async with ours, trio.open_nursery() as nursery:
            nursery.start_soon(serve_connection, theirs, 0, standin.handle, 1000)
            await ours.send_all(b"POST /collections HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n")
            await ours.send_all(b"content-length: 2\r\n\r\n")
            assert (await ours.receive_some()).startswith(b"HTTP/1.1 100")
            await ours.send_all(b"{}")
            assert (await ours.receive_some()).startswith(b"HTTP/1.1 400")
            await ours.send_eof()


async def test_collections_live_as_long_as_a_connection_that_used_them_and_a_while_more():
    now = 0.0
    standin = StandIn(lambda: now, grace=10)

    async def ask(method, *path, connection, body=b""):
        return (await standin.handle(Request(method, path, {}, "", {}, body, connection))).status

    await ask("POST", "collections", connection=1, body=b'{"name": "kb", "fields": []}')
    assert await ask("GET", "collections", "kb", connection=2) == 200
    standin.disconnected(1)
    now = 100.0
    assert (standin.collect(), len(standin)) == (0, 1)
    standin.disconnected(2)
    now = 109.0
    assert standin.collect() == 0
    now = 110.0
    assert (standin.collect(), len(standin)) == (1, 0)


async def test_programs_share_one_stand_in_and_the_second_takes_over(monkeypatch):
    monkeypatch.setattr(service, "RETRY_EVERY", 0.01)
    port = await free_port()
    ended = trio.Event()

    async def first(task_status):
        async with open_search(port=port) as search:
            task_status.started(search)
            await ended.wait()

    async with trio.open_nursery() as nursery:
        search = await nursery.start(first)
        async with open_search(port=port) as second, httpx.AsyncClient(base_url=second.url) as client:
            assert second.url == search.url and second.ranking == RANKING and "already" in second.note
            assert (await client.post("/collections", json=SCHEMA)).status_code == 201
            ended.set()
            with trio.fail_after(5):
                while True:
                    with suppress(httpx.TransportError):
                        if (await client.get("/collections")).json() == []:
                            break
                    await trio.sleep(0.01)


async def test_a_taken_address_that_is_no_typesense_is_named():
    async def refuse(stream):
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\nhm")

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, refuse, 0, host="127.0.0.1"))
        port = listener.socket.getsockname()[1]
        with pytest.raises(SearchUnavailable, match=f"{port}: what answers is no Typesense"):
            async with open_search(port=port):
                pass
        nursery.cancel_scope.cancel()


async def test_a_typesense_elsewhere_is_relayed_to_with_its_own_key(binary):
    target, port = await free_port(), await free_port()
    async with open_search(str(binary), port=target) as real:
        assert real.ranking == TYPESENSE
        async with open_search(real.url, port=port, key="secret") as search:
            assert search.ranking == TYPESENSE and search.url.endswith(f":{port}")
            async with httpx.AsyncClient(base_url=search.url, headers={"X-TYPESENSE-API-KEY": "Fake"}) as client:
                assert (await client.get("/keys?x=1")).text == "secret"
        async with open_search(real.url, port=target) as search:
            assert search.url == real.url
    with pytest.raises(SearchUnavailable, match="no knowledge search at"):
        async with open_search(f"http://127.0.0.1:{target}", limits=SearchLimits(answer=5)):
            pass


async def test_a_server_that_does_not_start_is_named(tmp_path, binary):
    with pytest.raises(SearchUnavailable, match="is no knowledge search"):
        async with open_search(str(tmp_path / "none")):
            pass
    binary.write_text(f"#!{sys.executable}\nimport sys; sys.exit('no licence')")
    with pytest.RaisesGroup(pytest.RaisesExc(SearchUnavailable, match="code 1; its last line: no licence")):
        async with open_search(str(binary), port=1):
            pass
    binary.chmod(0o644)
    with pytest.RaisesGroup(pytest.RaisesExc(SearchUnavailable, match="can't be started: Permission denied")):
        async with open_search(str(binary), port=1):
            pass


async def test_off_is_nothing():
    async with open_search("off") as search:
        assert search.ranking is None
