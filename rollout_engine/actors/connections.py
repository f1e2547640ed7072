"""Kept-alive connections for many requests at once, at a cost that doesn't grow with their number.

Invariant: a connection serves one request at a time and is kept only after a whole answer. httpx's own pool
looks at every connection on every request: at 144 at once that is 5 ms of CPU a request, more than the policy
server itself takes for a turn.
"""

from __future__ import annotations

from collections import defaultdict

import httpcore
import httpx

_ERRORS = {
    httpcore.ConnectTimeout: httpx.ConnectTimeout,
    httpcore.ReadTimeout: httpx.ReadTimeout,
    httpcore.WriteTimeout: httpx.WriteTimeout,
    httpcore.ConnectError: httpx.ConnectError,
    httpcore.ReadError: httpx.ReadError,
    httpcore.WriteError: httpx.WriteError,
    httpcore.LocalProtocolError: httpx.LocalProtocolError,
    httpcore.RemoteProtocolError: httpx.RemoteProtocolError,
}


class KeptConnections(httpx.AsyncBaseTransport):
    """An httpx transport. Connections idle for ``keepalive`` seconds aren't used again."""

    def __init__(self, keepalive: float):
        self._keepalive = keepalive
        self._tls = None
        # Newest last: the fewest connections stay warm, and the stalest are the first to be dropped.
        self._idle: dict[tuple[bytes, bytes, int], list[httpcore.AsyncHTTPConnection]] = defaultdict(list)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send ``request`` and read the whole answer; raises :class:`httpx.TransportError`."""
        url = httpcore.URL(
            scheme=request.url.raw_scheme, host=request.url.raw_host, port=request.url.port, target=request.url.raw_path
        )
        key = (url.origin.scheme, url.origin.host, url.origin.port)
        connection = self._take(key) or self._connect(url.origin)
        sent = httpcore.Request(
            request.method, url, headers=request.headers.raw, content=request.stream, extensions=request.extensions
        )
        whole = False
        try:
            answer = await connection.handle_async_request(sent)
            try:
                content = await answer.aread()
                whole = True
            finally:
                await answer.aclose()
        except tuple(_ERRORS) as error:
            raise _ERRORS[type(error)](str(error), request=request) from error
        finally:
            if whole and connection.is_idle():
                self._idle[key].append(connection)
            else:
                await connection.aclose()
        return httpx.Response(answer.status, headers=answer.headers, content=content, request=request)

    async def aclose(self) -> None:
        for connections in self._idle.values():
            for connection in connections:
                await connection.aclose()
        self._idle.clear()

    def _take(self, key: tuple[bytes, bytes, int]) -> httpcore.AsyncHTTPConnection | None:
        while self._idle[key]:
            connection = self._idle[key].pop()
            if not connection.has_expired():
                return connection
        return None

    def _connect(self, origin: httpcore.Origin) -> httpcore.AsyncHTTPConnection:
        if origin.scheme == b"https" and self._tls is None:
            self._tls = httpx.create_ssl_context()
        return httpcore.AsyncHTTPConnection(origin, ssl_context=self._tls, keepalive_expiry=self._keepalive)
