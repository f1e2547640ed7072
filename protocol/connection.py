"""One connection to NATS that rides out a server's death (asyncio).

Invariant: an operation either succeeds or raises a :class:`~protocol.errors.BusError` within
``nats.reconnect`` seconds, however often the server dies meanwhile; and because every publish is
idempotent, sending it again is always safe.

nats-py reconnects for ever by itself. What it doesn't do is tell a request in flight that its answer died
with the server; here such a request is given up at the moment of the disconnection and sent again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar
from urllib.parse import urlparse

import nats.errors
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.errors import APIError, NoStreamResponseError, ServiceUnavailableError

from protocol.config import Nats
from protocol.errors import BusClosed, BusError, JetStreamMissing, PayloadLimit, ServerUnreachable

T = TypeVar("T")

log = logging.getLogger("endstate.bus")

MIN_PAYLOAD = 64 * 1024
"""Smallest ``max_payload`` (bytes) at which an envelope without its token arrays is sure enough to fit."""

_RECONNECT_PAUSE = 0.2
_JETSTREAM_DISABLED = (10039, 10076)

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


class Connection:
    """An open connection with JetStream. Make one with :meth:`open`; end it with :meth:`close`."""

    def __init__(self, config: Nats):
        self.config = config
        self._client: Client | None = None
        self._js: JetStreamContext | None = None
        self._up = asyncio.Event()
        self._attempts: set[asyncio.Timeout] = set()

    # -- life --------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect and check that the server can hold a run.

        Raises :class:`ServerUnreachable`, :class:`JetStreamMissing` or :class:`PayloadLimit`.
        """
        await self._dial()
        try:
            await self._check_server()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Flush what is pending, within ``nats.connect_timeout``, and disconnect."""
        client, self._client, self._js = self._client, None, None
        if client is None:
            return
        try:
            async with asyncio.timeout(self.config.connect_timeout):
                if client.is_connected:
                    await client.flush()
                await client.close()
        except (TimeoutError, nats.errors.Error, OSError) as error:
            log.debug("closing: %s", error)

    async def _dial(self) -> None:
        if not urlparse(self.config.url).hostname:
            raise ServerUnreachable(f"{self.config.url!r} is no URL of a NATS server: set nats.url (nats://HOST:PORT)")
        client = Client()
        failure: list[BaseException] = []

        async def on_error(error: Exception) -> None:
            failure[:] = [error]
            log.debug("nats: %s", error)

        try:
            async with asyncio.timeout(self.config.connect_timeout):
                await client.connect(
                    self.config.url,
                    name="endstate",
                    connect_timeout=self.config.connect_timeout,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=_RECONNECT_PAUSE,
                    error_cb=on_error,
                    disconnected_cb=self._on_drop,
                    reconnected_cb=self._on_return,
                )
        except (TimeoutError, OSError, nats.errors.Error, ValueError) as error:
            await client.close()
            reason = failure[-1] if failure else error
            raise ServerUnreachable(
                f"no NATS server answers at {self.config.url} within {self.config.connect_timeout:g} s "
                f"({reason or type(reason).__name__}). Start one with bin/nats, or set nats.url"
            ) from error
        self._client = client
        self._js = client.jetstream(timeout=self.config.publish_timeout)
        self._up.set()

    async def _check_server(self) -> None:
        if self.client.max_payload < MIN_PAYLOAD:
            raise PayloadLimit(
                f"the NATS server at {self.config.url} has max_payload {self.client.max_payload} bytes; a run needs at "
                f"least {MIN_PAYLOAD}. Set max_payload in the server's configuration (its default is 1048576)"
            )
        try:
            await self.js.account_info()
        except ServiceUnavailableError as error:
            raise JetStreamMissing(self._without_jetstream()) from error
        except APIError as error:
            if error.err_code in _JETSTREAM_DISABLED:
                raise JetStreamMissing(self._without_jetstream()) from error
            raise BusError(f"the NATS server at {self.config.url} refused: {error}") from error
        except nats.errors.Error as error:
            raise ServerUnreachable(f"the NATS server at {self.config.url} does not answer: {error}") from error

    def _without_jetstream(self) -> str:
        return (
            f"the NATS server at {self.config.url} runs without JetStream, so it keeps nothing. "
            "Start one that does with bin/nats (or nats-server --jetstream)"
        )

    async def _on_drop(self) -> None:
        self._up.clear()
        now = asyncio.get_running_loop().time()
        for attempt in self._attempts:
            if not attempt.expired():
                attempt.reschedule(now)

    async def _on_return(self) -> None:
        self._up.set()

    @property
    def client(self) -> Client:
        if self._client is None:
            raise BusClosed("the bus is closed: use it inside its `async with`")
        return self._client

    @property
    def js(self) -> JetStreamContext:
        if self._js is None:
            raise BusClosed("the bus is closed: use it inside its `async with`")
        return self._js

    # -- bounded retries ---------------------------------------------------------------------------

    async def retry(self, what: str, operation: Callable[[], Awaitable[T]]) -> T:
        """Run ``operation`` until it succeeds, over server restarts, for at most ``nats.reconnect`` seconds.

        ``operation`` must be idempotent. Raises :class:`ServerUnreachable` at the bound.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + self.config.reconnect
        pause = 0.05
        failure: BaseException | None = None
        try:
            async with asyncio.timeout_at(deadline):
                # The condition is not idle: before Python 3.12 wait_for, inside nats-py, can swallow a cancellation.
                while clock() < deadline:
                    try:
                        await self._restored()
                        return await self._until_dropped(operation)
                    except ServerUnreachable as error:
                        failure = error
                    except _PASSING as error:
                        failure = error
                        log.debug("%s: %r; again in %.2f s", what, error, pause)
                    except APIError as error:
                        if error.code not in _PASSING_CODES:
                            raise BusError(f"{what}: the NATS server at {self.config.url} refused: {error}") from error
                        failure = error
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, 1.0)
        except TimeoutError:
            pass
        raise ServerUnreachable(
            f"{what}: no answer from NATS at {self.config.url} for {self.config.reconnect:g} s (nats.reconnect); "
            f"last fault: {failure or 'no connection'}. Is the server running (bin/nats)?"
        ) from failure

    async def _until_dropped(self, operation: Callable[[], Awaitable[T]]) -> T:
        """``operation()``, or ``TimeoutError`` as soon as the connection is lost: no answer will come."""
        async with asyncio.timeout(None) as attempt:
            self._attempts.add(attempt)
            try:
                return await operation()
            finally:
                self._attempts.discard(attempt)

    async def _restored(self) -> None:
        if self.client.is_closed:
            # nats-py gives up on some protocol errors; a run doesn't.
            self._up.clear()
            await self._dial()
        await self._up.wait()

    async def ask(
        self, subject: str, data: bytes, headers: dict[str, str] | None = None, timeout: float | None = None
    ) -> bytes:
        """Publish and await the one answer; ``TimeoutError`` after ``timeout`` (``nats.publish_timeout``) seconds."""
        bound = self.config.publish_timeout if timeout is None else timeout
        return (await self.client.request(subject, data, timeout=bound, headers=headers)).data

    async def announce(self, subject: str, data: bytes) -> None:
        """Publish to whoever listens now; while the server is away, to nobody."""
        if self.client.is_connected:
            await self.client.publish(subject, data)
