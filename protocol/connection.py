"""One connection to NATS that rides out a server's death, and a full disk (asyncio).

Invariant: an operation either succeeds or raises a :class:`~protocol.errors.BusError` within
``nats.reconnect`` seconds of its first fault, or ``nats.full_wait`` where the server has no room, however often the
server dies meanwhile; a wait that a person would notice is told; and because every publish is idempotent, sending
it again is always safe.

nats-py reconnects for ever by itself. What it doesn't do is tell a request in flight that its answer died
with the server; here such a request is given up at the moment of the disconnection and sent again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar
from urllib.parse import urlparse

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.errors import APIError, ServiceUnavailableError

from protocol.config import Nats
from protocol.errors import BusClosed, BusError, JetStreamMissing, PayloadLimit, ServerUnreachable, StorageFull
from protocol.faults import FAULTS, MAKE_ROOM, Notices, may_pass, no_room
from protocol.waits import Waits

T = TypeVar("T")

log = logging.getLogger("endstate.bus")

MIN_PAYLOAD = 64 * 1024
"""Smallest ``max_payload`` (bytes) at which an envelope without its token arrays is sure enough to fit."""

_RECONNECT_PAUSE = 0.2
_JETSTREAM_DISABLED = (10039, 10076)

_PATIENCE = 3.0
"""Seconds of a wait that nobody needs to be told of."""


class Connection:
    """An open connection with JetStream. Make one with :meth:`open`; end it with :meth:`close`."""

    def __init__(self, config: Nats):
        self.config = config
        self._client: Client | None = None
        self._js: JetStreamContext | None = None
        self._up = asyncio.Event()
        self._attempts: set[asyncio.Timeout] = set()
        self._answers: dict[str, asyncio.Future[bytes]] = {}
        """By the subject that an answer is awaited on."""
        self._numbers = itertools.count()
        self._inbox = ""
        self._notices = Notices(config)
        self.waits = Waits()
        """Of operations that met a fault, until they succeed or fail."""

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
        self._inbox = client.new_inbox()
        await client.subscribe(f"{self._inbox}.*", cb=self._on_answer)
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

    async def retry(self, what: str, operation: Callable[[], Awaitable[T]], bound: float | None = None) -> T:
        """Run ``operation`` until it succeeds, over server restarts, for at most ``nats.reconnect`` seconds after
        the first fault, or ``nats.full_wait`` where it is a server without room.

        ``operation`` must be idempotent; one try takes at most ``bound`` seconds. Raises :class:`ServerUnreachable`
        or :class:`StorageFull` at the bounds, and :class:`BusError` at once where another try would not help.
        """
        failure: Exception | None = None
        if self._up.is_set():
            # Nearly every operation ends here, so it costs one timer and no more.
            try:
                return await self._until_dropped(operation, bound)
            except FAULTS as error:
                failure = self._passing(what, error)
        with self.waits.one():
            return await self._persist(what, operation, bound, failure)

    async def _persist(
        self, what: str, operation: Callable[[], Awaitable[T]], bound: float | None, failure: Exception | None
    ) -> T:
        clock = asyncio.get_running_loop().time
        began = clock()
        full_since = began if no_room(failure) else None
        deadline = began + (self.config.reconnect if full_since is None else self.config.full_wait)
        pause = 0.05
        try:
            async with asyncio.timeout_at(deadline) as limit:
                # The condition is not idle: before Python 3.12 wait_for, inside nats-py, can swallow a cancellation.
                while clock() < deadline:
                    if full_since is not None or clock() > began + _PATIENCE:
                        self._notices.waiting(failure)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, 1.0)
                    try:
                        async with asyncio.timeout(_PATIENCE):
                            await self._restored()
                    except TimeoutError:
                        continue
                    except ServerUnreachable as error:
                        failure = error
                        continue
                    before = no_room(failure)
                    try:
                        value = await self._until_dropped(operation, bound)
                    except FAULTS as error:
                        failure = self._passing(what, error)
                    else:
                        self._notices.over()
                        return value
                    if no_room(failure):
                        full_since = clock() if full_since is None else full_since
                        deadline = full_since + self.config.full_wait
                    elif before:
                        # Restarted, now that there is room, perhaps.
                        deadline = clock() + self.config.reconnect
                    if not limit.expired():
                        limit.reschedule(deadline)
        except TimeoutError:
            pass
        if no_room(failure):
            raise StorageFull(
                f"{what}: the NATS server at {self.config.url} has had no room for {self.config.full_wait:g} s "
                f"(nats.full_wait): {failure.description}. {MAKE_ROOM}, then run the same command again: what is on "
                "the log stays"
            ) from failure
        raise ServerUnreachable(
            f"{what}: no answer from NATS at {self.config.url} for {self.config.reconnect:g} s (nats.reconnect); "
            f"last fault: {failure or 'no connection'}. Is the server running (bin/nats), and is there room on its "
            "disk? Then run the same command again: what is on the log stays"
        ) from failure

    def _passing(self, what: str, error: Exception) -> Exception:
        """The fault, where it may pass; raises :class:`BusError` where it won't."""
        if not may_pass(error):
            raise BusError(
                f"{what}: the NATS server at {self.config.url} refused: {error}. Its log says more (bin/nats keeps it "
                "in nats/nats.log of the run's folder)"
            ) from error
        log.debug("%s: %r", what, error)
        return error

    async def _until_dropped(self, operation: Callable[[], Awaitable[T]], bound: float | None) -> T:
        """``operation()``, or ``TimeoutError`` after ``bound`` seconds, or as soon as the connection is lost: no
        answer will come."""
        async with asyncio.timeout(bound) as attempt:
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

    # -- messages ----------------------------------------------------------------------------------

    async def ask(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> bytes:
        """Publish and await the one answer: use it under a bound, such as that of :meth:`retry`.

        Any number may be in flight. It does what nats-py's request does, for half of its time.
        """
        inbox = f"{self._inbox}.{next(self._numbers)}"
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._answers[inbox] = answer
        try:
            await self.client.publish(subject, data, reply=inbox, headers=headers)
            return await answer
        finally:
            del self._answers[inbox]

    async def _on_answer(self, message: Msg) -> None:
        answer = self._answers.get(message.subject)
        if answer is None or answer.done():
            return
        if not message.data and (message.headers or {}).get("Status") == "503":
            answer.set_exception(nats.errors.NoRespondersError())
        else:
            answer.set_result(message.data)

    async def announce(self, subject: str, data: bytes) -> None:
        """Publish to whoever listens now; while the server is away, to nobody."""
        with suppress(nats.errors.Error, OSError):
            if self.client.is_connected:
                await self.client.publish(subject, data)
