"""Kept connections, against a real server on the loopback interface."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
import pytest
import trio
import trio.testing

from rollout_engine.actors.connections import KeptConnections

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
Serve = Callable[[trio.SocketStream], Awaitable[None]]


async def answer_all(stream: trio.SocketStream) -> None:
    async for _ in stream:
        await stream.send_all(OK)


@asynccontextmanager
async def server(serve: Serve, keepalive: float = 60.0) -> AsyncIterator[tuple[httpx.AsyncClient, list]]:
    """A client, and the connections that ``serve`` has seen."""
    seen: list[trio.SocketStream] = []

    async def handle(stream: trio.SocketStream) -> None:
        seen.append(stream)
        try:
            await serve(stream)
        except trio.BrokenResourceError:
            pass  # the client left

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(lambda task_status: trio.serve_tcp(
            handle, 0, host="127.0.0.1", task_status=task_status))  # fmt: skip
        url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        async with httpx.AsyncClient(transport=KeptConnections(keepalive), base_url=url) as client:
            yield client, seen
        nursery.cancel_scope.cancel()


async def test_one_after_another_share_a_connection() -> None:
    async with server(answer_all) as (client, seen):
        for _ in range(5):
            assert (await client.get("/")).text == "ok"
    assert len(seen) == 1


async def test_at_once_each_has_its_own_and_later_ones_reuse_them() -> None:
    gate, waiting = trio.Event(), []

    async def together(stream: trio.SocketStream) -> None:
        async for _ in stream:
            waiting.append(stream)
            if len(waiting) == 8:
                gate.set()
            await gate.wait()
            await stream.send_all(OK)

    async with server(together) as (client, seen):
        for _ in range(2):
            async with trio.open_nursery() as nursery:
                for _ in range(8):
                    nursery.start_soon(client.get, "/")
    assert len(seen) == 8


async def test_a_connection_that_the_server_closed_while_idle_is_not_used_again() -> None:
    async def answer_once(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(OK)
        await stream.aclose()

    async with server(answer_once) as (client, seen):
        for _ in range(3):
            assert (await client.get("/")).text == "ok"
            await trio.testing.wait_all_tasks_blocked(0.01)
    assert len(seen) == 3


async def test_a_connection_past_its_time_is_not_used_again() -> None:
    async with server(answer_all, keepalive=0.0) as (client, seen):
        for _ in range(2):
            await client.get("/")
    assert len(seen) == 2


async def test_a_cut_answer_is_a_transport_error_and_its_connection_is_dropped() -> None:
    async def cut_first(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        if len(seen) == 1:
            await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
            await stream.aclose()
        else:
            await stream.send_all(OK)

    async with server(cut_first) as (client, seen):
        with pytest.raises(httpx.TransportError):
            await client.get("/")
        assert (await client.get("/")).text == "ok"


async def test_a_request_given_up_takes_its_connection_with_it() -> None:
    async def never_the_first(stream: trio.SocketStream) -> None:
        async for _ in stream:
            if len(seen) > 1:
                await stream.send_all(OK)

    async with server(never_the_first) as (client, seen):
        with trio.move_on_after(0.05):
            await client.get("/")
        assert (await client.get("/")).text == "ok"
    assert len(seen) == 2


async def test_timeout_and_refusal_are_httpx_errors() -> None:
    async with server(lambda stream: trio.sleep_forever()) as (client, _):
        with pytest.raises(httpx.ReadTimeout):
            await client.get("/", timeout=0.05)
        with pytest.raises(httpx.ConnectError):
            await client.get("http://127.0.0.1:9/")
