"""Open a knowledge search at the address where servers look for their Typesense.

Invariant: while :func:`open_search` is entered, something answers at the address, and :attr:`Search.ranking` says whose
ranking it is. Nothing outlives it: no process, no socket, no task.

Published knowledge servers look at 127.0.0.1:8108 and can't be told otherwise. So a Typesense elsewhere is relayed to
from there, and programs that run side by side on one machine share whatever answers there.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import trio

from rollout_engine.sessions.search.http import Handler, serve_connection
from rollout_engine.sessions.search.ranking import RANKING
from rollout_engine.sessions.search.relay import relay
from rollout_engine.sessions.search.server import SearchUnavailable, typesense_server
from rollout_engine.sessions.search.standin import StandIn

HOST, PORT = "127.0.0.1", 8108
TYPESENSE = "typesense"
COLLECT_EVERY = 60.0
RETRY_EVERY = 1.0


class AddressTaken(SearchUnavailable):
    """Something else listens where the servers look."""


@dataclass(frozen=True)
class SearchLimits:
    """Bounds, in seconds and bytes."""

    start: float = 60.0
    """A Typesense of ours has answered by then."""
    answer: float = 60.0
    """A Typesense elsewhere has answered a relayed call by then."""
    grace: float = 3600.0
    """A collection of the stand-in is kept so long after its last use once no connection of its users is open."""
    body: int = 64 * 2**20


@dataclass(frozen=True)
class Search:
    """``ranking`` is what every result that used the search must say; None where there is no search."""

    url: str
    ranking: str | None
    note: str
    """What answers and why, for people."""


@asynccontextmanager
async def open_search(
    choice: str = "auto", *, host: str = HOST, port: int = PORT, key: str = "", limits: SearchLimits | None = None
) -> AsyncIterator[Search]:
    """Have a knowledge search at ``http://host:port``.

    ``choice``: ``auto`` (whatever answers there already, else the embedded stand-in), ``off``, the URL of a Typesense
    (``key`` is its API key), or the path of a ``typesense-server``.

    Raises SearchUnavailable.
    """
    limits = limits or SearchLimits()
    url = f"http://{host}:{port}"
    if choice == "off":
        yield Search(url, None, "off")
    elif choice == "auto":
        async with _shared(host, port, limits) as search:
            yield search
    elif choice.startswith(("http://", "https://")):
        async with _relayed(choice.rstrip("/"), host, port, key, limits) as search:
            yield search
    elif Path(choice).is_file():
        async with typesense_server(Path(choice), host, port, limits.start):
            yield Search(url, TYPESENSE, f"{choice}, started here")
    else:
        raise SearchUnavailable(
            f"{choice!r} is no knowledge search: give auto, off, the URL of a Typesense, or the path of a "
            "typesense-server"
        )


@asynccontextmanager
async def _shared(host: str, port: int, limits: SearchLimits) -> AsyncIterator[Search]:
    """What answers at the address, else the stand-in; and the stand-in as soon as the other one is gone."""
    standin = StandIn(trio.current_time, limits.grace)
    serve = partial(_serve, standin.handle, limits.body, standin.disconnected)
    try:
        listeners = await _listen(host, port)
        search = Search(_url(listeners), RANKING, "the embedded stand-in")
        serving = partial(serve, listeners)
    except AddressTaken:
        url = f"http://{host}:{port}"
        search = Search(url, await _who_answers(url, limits.answer), f"what answers at {url} already")
        serving = partial(_serve_when_free, host, port, serve)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serving)
        nursery.start_soon(_collect, standin)
        yield search
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def _relayed(target: str, host: str, port: int, key: str, limits: SearchLimits) -> AsyncIterator[Search]:
    ranking = await _who_answers(target, limits.answer)
    if target in (f"http://{host}:{port}", f"http://localhost:{port}"):
        yield Search(target, ranking, f"what answers at {target}")
        return
    listeners = await _listen(host, port)
    timeout = httpx.Timeout(limits.answer)
    async with httpx.AsyncClient(base_url=target, timeout=timeout) as client, trio.open_nursery() as nursery:
        nursery.start_soon(_serve, partial(relay, client, key), limits.body, lambda number: None, listeners)
        yield Search(_url(listeners), ranking, f"{target}, relayed to")
        nursery.cancel_scope.cancel()


async def _who_answers(url: str, bound: float) -> str:
    """The ranking of what answers at ``url``. Raises SearchUnavailable where that is no Typesense."""
    try:
        async with httpx.AsyncClient(timeout=bound) as client:
            reply = await client.get(f"{url}/health")
        health = reply.json()
        if reply.status_code == 200 and health["ok"]:
            return health.get("ranking", TYPESENSE)
        told = f"it isn't well: {reply.text[:200]}"
    except httpx.HTTPError as error:
        told = f"{type(error).__name__}: {error}"
    except (ValueError, KeyError, TypeError):
        told = "what answers is no Typesense"
    raise SearchUnavailable(
        f"no knowledge search at {url}: {told}. Start a Typesense there, or free the address: servers look for it there"
    )


async def _listen(host: str, port: int) -> list[trio.SocketListener]:
    try:
        return await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        kind = AddressTaken if error.errno == errno.EADDRINUSE else SearchUnavailable
        raise kind(f"the knowledge search can't listen at {host}:{port}: {error.strerror}") from error


def _url(listeners: list[trio.SocketListener]) -> str:
    host, port = listeners[0].socket.getsockname()[:2]
    return f"http://{host}:{port}"


async def _serve(
    handle: Handler, largest_body: int, disconnected: Callable[[int], None], listeners: list[trio.SocketListener]
) -> None:
    numbers = itertools.count()

    async def connected(stream: trio.SocketStream) -> None:
        number = next(numbers)
        try:
            await serve_connection(stream, number, handle, largest_body)
        finally:
            disconnected(number)

    await trio.serve_listeners(connected, listeners)


async def _serve_when_free(host: str, port: int, serve: Callable[[list[trio.SocketListener]], Awaitable[None]]) -> None:
    """Another program's search serves us until that program ends; then ours does."""
    while True:
        await trio.sleep(RETRY_EVERY)
        with suppress(AddressTaken):
            await serve(await _listen(host, port))


async def _collect(standin: StandIn) -> None:
    while True:
        await trio.sleep(COLLECT_EVERY)
        standin.collect()
