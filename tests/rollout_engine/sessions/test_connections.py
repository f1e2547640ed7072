"""A session's HTTP connections are not its copies'."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from rollout_engine.sessions import CannotBranch, SessionHost


class Echo(BaseHTTPRequestHandler):
    """Answers with the port that the connection comes from, which tells connections apart, and keeps it open."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = str(self.client_address[1]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as httpd:
        thread = Thread(target=httpd.serve_forever, daemon=True)
        thread.start()
        yield httpd.server_address[1]
        httpd.shutdown()
        thread.join()


async def test_copies_connect_anew_and_the_original_keeps_its_connection(server, limits, port):
    async with SessionHost({"notes": server("notes")}, limits) as host:
        for tool in ("fetch", "fetch_async"):

            async def fetch(session, tool=tool):
                result = await session.call(tool, {"url": f"http://127.0.0.1:{port}/"})
                assert not result.is_error, result.text
                return json.loads(result.text)

            async with host.open({"notes": {}}) as session:
                first = await fetch(session)
                assert await fetch(session) == first
                async with session.branch() as one, session.branch() as other:
                    connections = [await fetch(one), await fetch(session), await fetch(other), await fetch(one)]
                    assert connections[1] == first and connections[0] == connections[3]
                    assert len(set(connections)) == 3
                    async with one.branch() as twig:
                        assert await fetch(twig) not in connections
                        assert await fetch(one) == connections[0]


async def test_any_other_connection_keeps_a_session_from_being_copied(server, limits, port):
    async with SessionHost({"notes": server("notes")}, limits) as host:
        async with host.open({"notes": {}}) as session:
            await session.call("keep_socket", {"port": port})
            with pytest.raises(CannotBranch, match="it holds .*socket"):
                async with session.branch():
                    pass
