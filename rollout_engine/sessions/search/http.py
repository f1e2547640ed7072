"""The least HTTP/1.1 server that keeps connections open: h11 over trio streams, for many small local requests.

Invariant: a handler sees whole requests, one after another on a connection, and a body is bounded. What isn't HTTP
ends the connection with a 400.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import h11
import trio

READ_SIZE = 65536


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: tuple[str, ...]
    """The segments of the path, decoded."""
    query: Mapping[str, str]
    target: str
    """Path and query as they came."""
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes
    connection: int
    """Tells connections apart; numbers aren't used twice."""


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes
    content_type: str = "application/json"
    close: bool = field(default=False)
    """End the connection after this reply."""


Handler = Callable[[Request], Awaitable[Reply]]


def json_reply(status: int, value: Any) -> Reply:
    return Reply(status, json.dumps(value).encode())


async def serve_connection(stream: trio.abc.Stream, number: int, handle: Handler, largest_body: int) -> None:
    """Answer requests until the peer closes, and close ``stream``."""
    async with stream:
        connection = h11.Connection(h11.SERVER)
        try:
            while True:
                request = await _next_request(connection, stream, number, largest_body)
                if request is None:
                    return
                reply = request if isinstance(request, Reply) else await handle(request)
                await _send(connection, stream, reply)
                if reply.close or connection.our_state is h11.MUST_CLOSE:
                    return
                connection.start_next_cycle()
        except h11.RemoteProtocolError as error:
            if connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                refusal = Reply(error.error_status_hint, str(error).encode(), "text/plain", close=True)
                await _send(connection, stream, refusal)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            # The peer is gone, which is how a killed session's connection ends.
            return


async def _next_request(connection: h11.Connection, stream: trio.abc.Stream, number: int, largest_body: int):
    """A whole request; the refusal of one that is too large; None when the peer has closed."""
    head: h11.Request | None = None
    body = bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            if connection.they_are_waiting_for_100_continue:
                go_on = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
                await stream.send_all(connection.send(go_on))
            connection.receive_data(await stream.receive_some(READ_SIZE))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > largest_body:
                return Reply(413, b'{"message": "request body too large"}', close=True)
        elif isinstance(event, h11.ConnectionClosed):
            return None
        elif isinstance(event, h11.EndOfMessage):
            target = head.target.decode("ascii")
            try:
                url = urlsplit(target)
            except ValueError:  # brackets without their end
                return Reply(400, b'{"message": "Bad request target."}', close=True)
            path = tuple(unquote(segment) for segment in url.path.split("/") if segment)
            headers = {name.decode("ascii"): value.decode("latin-1") for name, value in head.headers}
            query = dict(parse_qsl(url.query, keep_blank_values=True))
            return Request(head.method.decode("ascii"), path, query, target, headers, bytes(body), number)


async def _send(connection: h11.Connection, stream: trio.abc.Stream, reply: Reply) -> None:
    headers = [("content-type", reply.content_type), ("content-length", str(len(reply.body)))]
    if reply.close:
        headers.append(("connection", "close"))
    reason = HTTPStatus(reply.status).phrase if reply.status in HTTPStatus.__members__.values() else ""
    head = h11.Response(status_code=reply.status, headers=headers, reason=reason.encode("ascii"))
    parts = [connection.send(head), connection.send(h11.Data(data=reply.body)), connection.send(h11.EndOfMessage())]
    await stream.send_all(b"".join(parts))
