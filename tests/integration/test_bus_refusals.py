"""A server that can't hold a run is refused at once, by name of what is wrong and what to do."""

from __future__ import annotations

import socket
import time

import pytest

from protocol.bus import JetStreamMissing, PayloadLimit, ServerUnreachable, connect
from protocol.config import Nats
from protocol.server import free_port

pytestmark = pytest.mark.nats


async def _refusal(url: str, run: str, kind: type[Exception]) -> str:
    with pytest.raises(kind) as refusal:
        async with connect(Nats(url=url, connect_timeout=1.0), run):
            pass
    return str(refusal.value)


async def test_nobody_listens(run):
    started = time.monotonic()
    message = await _refusal(f"nats://127.0.0.1:{free_port()}", run, ServerUnreachable)
    assert "Connect call failed" in message
    assert "Start one with bin/nats" in message
    assert time.monotonic() - started < 3


async def test_someone_listens_who_never_answers(run):
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        started = time.monotonic()
        message = await _refusal(f"nats://127.0.0.1:{mute.getsockname()[1]}", run, ServerUnreachable)
    assert "within 1 s" in message
    assert time.monotonic() - started < 4


async def test_a_server_without_jetstream(nats_server, run):
    message = await _refusal(nats_server(jetstream=False).url, run, JetStreamMissing)
    assert "without JetStream" in message
    assert "bin/nats" in message


async def test_a_server_with_too_small_a_payload(nats_server, run):
    message = await _refusal(nats_server(max_payload=32_768).url, run, PayloadLimit)
    assert "max_payload 32768 bytes" in message
    assert "at least 65536" in message


async def test_an_envelope_that_does_not_fit_even_without_its_arrays(nats_server, run, make_trajectory):
    server = nats_server(max_payload=65_536)
    async with connect(Nats(url=server.url), run) as bus:
        large = make_trajectory(run, tokens=50_000)
        assert await bus.publish_trajectory(large) is True
        assert (await bus.trajectories(0)) == [large]
        with pytest.raises(PayloadLimit, match=r"without its arrays; the server's max_payload is 65536.*--max-payload"):
            await bus.publish_trajectory(make_trajectory(run, sample=1, actor="x" * 70_000))
        assert await bus.publish_trajectory(make_trajectory(run, sample=2)) is True, "the connection lives on"


async def test_not_a_url(run):
    message = await _refusal("nats://", run, ServerUnreachable)
    assert "nats.url" in message
