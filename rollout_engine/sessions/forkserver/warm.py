"""What HTTP clients put off until their first use, done once before the first fork instead of once a session.

Invariant: a session behaves as if this had not been. A module is imported that its client would import; a TLS context
is handed to one caller only, and it is what the call would have made, from the same certificates.

Of the 60 ms of CPU that a session with ten requests by httpx takes, this is more than two thirds.
"""

import importlib
import os
import sys

PUT_OFF = {"httpx": ("httpcore", "certifi"), "httpx2": ("httpcore2",)}
CONTEXTS = 2
"""Kept for each session: a client makes one."""


def warm():
    """To be called when everything that the server imports by itself has been imported."""
    for client, modules in PUT_OFF.items():
        if client in sys.modules:
            for name in modules:
                try:
                    importlib.import_module(name)
                except ImportError:
                    pass  # its first request would fail of it too
    where = _certificates()
    if where and not os.environ.get("SSLKEYLOGFILE"):
        _keep_contexts(where)


def _certificates():
    """What httpx gives ``ssl.create_default_context``, or nothing."""
    if "httpx" not in sys.modules:
        return {}
    for variable, argument in (("SSL_CERT_FILE", "cafile"), ("SSL_CERT_DIR", "capath")):
        if os.environ.get(variable):
            return {argument: os.environ[variable]}
    certifi = sys.modules.get("certifi")
    return {"cafile": certifi.where()} if certifi else {}


def _keep_contexts(where):
    import ssl  # a server that is no client doesn't have it

    make = ssl.create_default_context
    try:
        kept = [make(**where) for _ in range(CONTEXTS)]
    except OSError:
        return  # they can't be read: whoever needs them will say so

    def create_default_context(*args, **kwargs):
        if kept and not args and kwargs == where:
            return kept.pop()
        return make(*args, **kwargs)

    ssl.create_default_context = create_default_context
