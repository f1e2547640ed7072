"""Idle connections of HTTP clients, which copies of a process must not share: they would read each other's answers.

Invariant: a copy finds such a connection closed by the other side, which the client's pool takes as a matter of course
and connects anew. Only connections of pools known to do so are named here; any other socket keeps a process from being
copied.
"""

import gc
import os
import socket

_found = []
"""Connections found before: a freeze hides them from the next search."""


def pooled_fds():
    """Descriptors of connections in the pools of httpx and httpcore, of requests and urllib3.

    Looks at what was made since the last freeze: what came before was found then, or held no sockets.
    """
    _found.extend(thing for thing in gc.get_objects() if _socket(thing) is not None)
    return {fd for fd in (_fileno(_socket(thing)) for thing in _found) if fd >= 0}


def _socket(thing):
    """The socket of a pool's connection, or None."""
    kind = type(thing)
    module = kind.__module__ if isinstance(kind.__module__, str) else ""
    if module.startswith("httpcore") and kind.__name__ == "SyncStream":
        return getattr(thing, "_sock", None)
    if module.startswith("httpcore") and kind.__name__ == "AnyIOStream":
        transport = getattr(getattr(thing, "_stream", None), "_transport", None)
        return transport and transport.get_extra_info("socket")
    if module.startswith("urllib3") and kind.__name__.endswith("Connection"):
        return getattr(thing, "sock", None)
    return None


def _fileno(sock):
    try:
        return sock.fileno()
    except (AttributeError, OSError):
        return -1


def ended_stream():
    """A TCP connection that the other side has closed. Made before a fork, so that a failure is not the copy's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ended = socket.create_connection(listener.getsockname())
        listener.accept()[0].close()
    return ended


def close_by_peer(fds, ended):
    """Put the ended stream in the place of each descriptor."""
    for fd in fds:
        os.dup2(ended.fileno(), fd, inheritable=False)
