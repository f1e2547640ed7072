"""Serve the proxy's application over HTTP or HTTPS, on trio.

Invariant: the address is bound before anything else is started, so that a taken address costs nothing; and a request to
stop lets requests in progress finish within ``GRACE`` seconds.
"""

from __future__ import annotations

import signal
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import trio
from hypercorn.config import Config
from hypercorn.trio import serve

GRACE = 3.0
KEEP_ALIVE = 75.0
"""Seconds that an idle connection is kept."""
BACKLOG = 1024


class CannotServe(Exception):
    """The message names the fault and the way out."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises CannotServe."""
    if not 0 <= port < 1 << 16:  # the system would take another one for it
        raise CannotServe(f"--port {port}: a port is a number from 0 to 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise CannotServe(f"--host {host} --port {port}: {error.strerror}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise CannotServe(f"can't listen at {host}:{port}: {error.strerror}; choose another --port") from error
    return listener


def check_pem(pem: Path) -> None:
    """Raises CannotServe where the file doesn't hold a certificate and its private key."""
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(pem)
    except OSError as error:  # ssl.SSLError is one
        why = error.strerror if not isinstance(error, ssl.SSLError) else "no certificate with its private key in it"
        raise CannotServe(f"--ssl-pem {pem}: {why}") from error


async def serve_app(app: Any, listener: socket.socket, pem: Path | None, stop: Callable[[], Awaitable[object]]) -> None:
    """Serve until ``stop`` returns. The socket is closed then."""
    config = Config()
    config.bind = [f"fd://{listener.detach()}"]
    config.loglevel = "WARNING"
    config.graceful_timeout = GRACE
    config.keep_alive_timeout = KEEP_ALIVE
    config.backlog = BACKLOG
    config.include_server_header = False
    config.alpn_protocols = ["http/1.1"]
    if pem is not None:
        config.certfile = config.keyfile = str(pem)
    await serve(app, config, shutdown_trigger=stop)


async def until_signal() -> None:
    """Return at the first SIGINT or SIGTERM."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            return
