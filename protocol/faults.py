"""What a NATS server's faults mean: which may pass, which are a server without room, and what a person is told.

Invariant: whoever waits longer than a moment for a server says so, once for all who wait with it, and says when it is
over.
"""

from __future__ import annotations

import logging
import time

import nats.errors
from nats.js.errors import APIError, NoStreamResponseError, ServiceUnavailableError

from protocol.config import Nats

log = logging.getLogger("endstate.bus")

_PASSING = (
    OSError,  # Timeouts too, nats-py's among them.
    nats.errors.ConnectionClosedError,
    nats.errors.ConnectionReconnectingError,
    nats.errors.NoRespondersError,
    nats.errors.OutboundBufferLimitError,
    nats.errors.StaleConnectionError,
    nats.errors.NoServersError,
    NoStreamResponseError,
    ServiceUnavailableError,
)
"""What a restarting server looks like from here: worth another try until the bound."""

_PASSING_CODES = (408, 409, 503)
"""Status of a pull whose consumer went with the old server, or is being moved."""

_CONSUMER_NOT_FOUND = 10014
"""A reader's consumer lives in memory and went with the old server."""

_NO_ROOM = (10002, 10023, 10047, 10077)
"""Error codes of a server that could not store: limits of an account, of the server, of its disk, of a stream."""

_SAY_AGAIN = 30.0

FAULTS = (*_PASSING, APIError)
"""All that an operation may raise."""

MAKE_ROOM = (
    "Make room on its disk, or raise its limit (max_file_store, or the stream's max_bytes), or purge what checkpoints "
    "hold already (nats.retain: checkpoint)"
)


def may_pass(error: Exception) -> bool:
    """Whether the same operation may succeed later."""
    if isinstance(error, _PASSING) or no_room(error):
        return True
    return isinstance(error, APIError) and (error.code in _PASSING_CODES or error.err_code == _CONSUMER_NOT_FOUND)


def no_room(error: BaseException | None) -> bool:
    """Whether the server could not store."""
    return isinstance(error, APIError) and error.err_code in _NO_ROOM


class Notices:
    """What one connection tells a person of its waits."""

    def __init__(self, config: Nats):
        self._config = config
        self._told: dict[str, float] = {}
        """When each kind of wait was last told of."""

    def waiting(self, failure: Exception | None) -> None:
        """Say, once in a while, what is waited for."""
        config = self._config
        if no_room(failure):
            self._tell(
                "full",
                f"the NATS server at {config.url} has no room ({failure.description}): waiting up to "
                f"{config.full_wait:g} s, nothing is lost. {MAKE_ROOM}",
            )
        else:
            self._tell(
                "away", f"no answer from NATS at {config.url}: waiting up to {config.reconnect:g} s, nothing is lost"
            )

    def over(self) -> None:
        """Say that the wait is over, if it was told of."""
        if self._told:
            self._told.clear()
            log.warning("NATS at %s goes on", self._config.url)

    def _tell(self, kind: str, text: str) -> None:
        now = time.monotonic()
        if now >= self._told.get(kind, -_SAY_AGAIN) + _SAY_AGAIN:
            self._told[kind] = now
            log.warning("%s", text)
