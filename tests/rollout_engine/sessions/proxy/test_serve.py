"""The app behind a real HTTP server: keep-alive, lost connections, TLS, stopping."""

import datetime
import ipaddress
import json
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from mcp.client.session import ClientSession
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client
from scripted_host import Host

from rollout_engine.sessions.proxy.app import proxy_app
from rollout_engine.sessions.proxy.client import ProxyHost
from rollout_engine.sessions.proxy.serve import bind, check_pem, serve_app

NOTES = {"notes": {}}


@asynccontextmanager
async def serving(pem=None):
    """Host and port of an app over a scripted host."""
    host, stop = Host(), trio.Event()
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    async with proxy_app(host) as app, trio.open_nursery() as nursery:
        nursery.start_soon(serve_app, app, listener, pem, stop.wait)
        with trio.fail_after(20):
            yield host, port
        stop.set()


@pytest.fixture
def pem(tmp_path):
    """A certificate of 127.0.0.1 and its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(here, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, pkcs8, bare = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    file = tmp_path / "both.pem"
    file.write_bytes(certificate.public_bytes(pem) + key.private_bytes(pem, pkcs8, bare))
    return file


async def test_sessions_by_url():
    async with serving() as (host, port), ProxyHost(f"http://127.0.0.1:{port}/") as client:
        async with client.open(NOTES, tools=["write"]) as one, client.open(NOTES) as other:
            assert (await one.call("write", {"text": "a"})).text == '{"count": 1}'
            assert await other.effects() == {"notes": {"written": []}}
        assert len(host.closed) == 2


async def test_https(pem):
    check_pem(pem)
    async with serving(pem) as (_, port), ProxyHost(f"https://127.0.0.1:{port}", ca=pem) as client:
        async with client.open(NOTES) as session:
            assert (await session.call("fail", {})).is_error


async def test_an_mcp_client_uses_a_session():
    async with serving() as (_, port), ProxyHost(f"http://127.0.0.1:{port}") as client, client.open(NOTES) as session:
        headers = {"X-TB-Session-Id": session.id}
        async with create_mcp_http_client(headers=headers) as http:
            async with streamable_http_client(f"http://127.0.0.1:{port}/mcp", http_client=http) as streams:
                async with ClientSession(*streams[:2]) as mcp:
                    await mcp.initialize()
                    assert [tool.name for tool in (await mcp.list_tools()).tools][:2] == ["write", "wait"]
                    result = await mcp.call_tool("write", {"text": "a"})
                    assert result.structured_content == {"count": 1}


async def send(port, path, body):
    """A request over a connection of its own, whose reply isn't read yet."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    await stream.send_all(head.encode() + data)
    return stream


async def read(stream):
    """The value of the reply that comes."""
    received = b""
    async for data in stream:
        received += data
        head, _, body = received.partition(b"\r\n\r\n")
        if body and len(body) == int(head.partition(b"content-length: ")[2].split()[0]):
            return json.loads(body)["content"]["value"]


async def test_the_connection_is_lost_in_mid_call_and_the_same_body_comes_again():
    async with (
        serving() as (host, port),
        ProxyHost(f"http://127.0.0.1:{port}") as client,
        client.open(NOTES) as session,
    ):
        body = {"session_id": session.id, "tool_name": "write", "arguments": {"text": "a", "seconds": 0.3}}
        lost = await send(port, "/call_tool", body)
        await trio.sleep(0.1)
        await lost.aclose()
        again = await send(port, "/call_tool", body)
        assert await read(again) == '{"count": 1}'
        await again.aclose()
        assert host.calls == [("write", {"text": "a", "seconds": 0.3})]


async def test_stopping_lets_a_call_finish():
    host, stop = Host(), trio.Event()
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    with trio.fail_after(20):
        async with proxy_app(host) as app, trio.open_nursery() as nursery:
            nursery.start_soon(partial(serve_app, app, listener, None, stop.wait))
            create = await send(
                port, "/session_create", {"session_id": "s", "server_config": NOTES, "available_tools": ["write"]}
            )
            assert await read(create) == {"notes": {"count": 0}}
            arguments = {"text": "a", "seconds": 0.3}
            call = await send(port, "/call_tool", {"session_id": "s", "tool_name": "write", "arguments": arguments})
            await trio.sleep(0.1)
            stop.set()
            assert await read(call) == '{"count": 1}'
            await call.aclose()
            await create.aclose()
    assert host.closed == ["s"]
