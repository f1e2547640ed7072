"""TLS contexts made once, before the first fork, instead of once a session.

Invariant: a session behaves as if this had not been. A context is handed to one caller only, and it is what the call
would have made, from the same certificates.

httpx reads the certificates of all authorities whenever a client is made, whether or not it will ever use TLS: 20 ms of
the 28 that a session takes which makes one client and ten requests.
"""

import os
import sys

CONTEXTS = 2
"""Kept for each session: a client makes one."""


def keep():
    """To be called when everything that the server imports by itself has been imported."""
    where = _authorities()
    if where and not os.environ.get("SSLKEYLOGFILE"):
        _keep(where)


def _authorities():
    """What httpx gives ``ssl.create_default_context``, or nothing."""
    if "httpx" not in sys.modules:
        return {}
    for variable, argument in (("SSL_CERT_FILE", "cafile"), ("SSL_CERT_DIR", "capath")):
        if os.environ.get(variable):
            return {argument: os.environ[variable]}
    try:
        import certifi
    except ImportError:
        return {}
    return {"cafile": certifi.where()}


def _keep(where):
    import ssl  # httpx has it; another server need not

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
