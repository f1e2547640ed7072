"""One connection to NATS that rides out a server's death (asyncio).

Invariant: an operation either succeeds or raises a :class:`~protocol.errors.BusError` within
``nats.reconnect`` seconds, however often the server dies meanwhile; and because every publish is
idempotent, sending it again is always safe.

nats-py reconnects for ever by itself. What it doesn't do is tell a request in flight that its answer died
with the server; here such a request fails at the moment of the disconnection and is sent again.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext, api
from nats.js.errors import (
    APIError,
    NoStreamResponseError,
    NotFoundError,
    ServiceUnavailableError,
)

from protocol.config import Nats
from protocol.errors import BusClosed, BusError, JetStreamMissing, PayloadLimit, ServerUnreachable

T = TypeVar("T")

log = logging.getLogger("endstate.bus")

MIN_PAYLOAD = 64 * 1024
"""Smallest ``max_payload`` (bytes) at which an envelope without its token arrays is sure enough to fit."""

_RECONNECT_PAUSE = 0.2
_WRONG_LAST_SEQUENCE = (10071, 10164)
_JETSTREAM_DISABLED = (10039, 10076)
_PAGE_TIMEOUT = 5.0


class _Dropped(Exception):
    """The connection was lost while a request was in flight: nobody knows whether it arrived."""


_PASSING = (
    _Dropped,
    TimeoutError,
    OSError,
    nats.errors.TimeoutError,
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


@dataclass(frozen=True, slots=True)
class Stored:
    """A message as the stream keeps it."""

    sequence: int
    subject: str
    data: bytes


class Connection:
    """An open connection with JetStream. Make one with :meth:`open`; end it with :meth:`close`."""

    def __init__(self, config: Nats):
        self.config = config
        self._client: Client | None = None
        self._js: JetStreamContext | None = None
        self._up = asyncio.Event()
        self._inbox = ""
        self._tokens = itertools.count()
        self._in_flight: dict[str, asyncio.Future[Msg]] = {}

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
                self._inbox = client.new_inbox() + "."
                await client.subscribe(self._inbox + "*", cb=self._on_reply)
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
        for future in self._in_flight.values():
            if not future.done():
                future.set_exception(_Dropped("the connection was lost"))

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
                        return await operation()
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

    async def _restored(self) -> None:
        if self.client.is_closed:
            # nats-py gives up on some protocol errors; a run doesn't.
            self._up.clear()
            await self._dial()
        await self._up.wait()

    async def request(self, subject: str, data: bytes, headers: dict[str, str]) -> api.PubAck:
        """Publish to JetStream and await its acknowledgement; ``_Dropped`` as soon as the connection is lost.

        Raises the ``APIError`` by which the server refuses. (nats-py's own publish waits out its timeout when
        the server dies, and its publish_async never hears of a refusal.)
        """
        token = str(next(self._tokens))
        future = self._in_flight[token] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self.config.publish_timeout):
                await self.client.publish(subject, data, reply=self._inbox + token, headers=headers)
                reply = await future
        finally:
            del self._in_flight[token]
        if reply.headers and reply.headers.get(api.Header.STATUS) == "503":
            raise NoStreamResponseError
        answer = json.loads(reply.data)
        if "error" in answer:
            APIError.from_error(answer["error"])
        return api.PubAck.from_response(answer)

    async def _on_reply(self, message: Msg) -> None:
        future = self._in_flight.get(message.subject.removeprefix(self._inbox))
        if future is not None and not future.done():
            future.set_result(message)

    # -- writing -----------------------------------------------------------------------------------

    def fits(self, data: bytes, headers: dict[str, str]) -> bool:
        """Whether one message holds ``data``; ``max_payload`` counts the headers too."""
        return len(data) + header_size(headers) <= self.client.max_payload

    async def publish(self, subject: str, data: bytes, id: str, last: int) -> int | None:
        """Append to the stream, provided that the subject's last sequence is ``last`` (0: none yet).

        Returns the new message's sequence, or None when the stream holds this id already or has moved on.
        Raises :class:`PayloadLimit` when the server would refuse the size.
        """
        headers = publish_headers(id, last)
        if not self.fits(data, headers):
            raise PayloadLimit(
                f"{id} takes {len(data) + header_size(headers)} bytes without its arrays and the NATS server at "
                f"{self.config.url} has max_payload {self.client.max_payload}: raise max_payload in the server's "
                "configuration (bin/nats --max-payload)"
            )

        async def attempt() -> int | None:
            try:
                ack = await self.request(subject, data, headers)
            except APIError as error:
                if error.err_code in _WRONG_LAST_SEQUENCE:
                    return None
                raise
            return None if ack.duplicate else ack.seq

        return await self.retry(f"publishing {id}", attempt)

    async def announce(self, subject: str, data: bytes) -> None:
        """Publish to whoever listens now; while the server is away, to nobody."""
        if self.client.is_connected:
            await self.client.publish(subject, data)

    # -- reading -----------------------------------------------------------------------------------

    async def last(self, stream: str, subject: str) -> Stored | None:
        """The newest message of a subject, or None."""

        async def attempt() -> Stored | None:
            # A direct get may be answered by a replica that lags behind; the leader has the last word on absence.
            for direct in (True, False):
                try:
                    message = await self.js.get_last_msg(stream, subject, direct=direct)
                except NotFoundError:
                    continue
                return Stored(message.seq, message.subject, message.data or b"")
            return None

        return await self.retry(f"reading {subject}", attempt)

    async def page(
        self, stream: str, subject: str, start: int = 1, limit: int = 64, newest: bool = False
    ) -> tuple[list[Stored], int]:
        """Up to ``limit`` messages that match ``subject``, in stream order from sequence ``start``.

        Returns them and the sequence to go on from (0: that was all). ``newest``: only the last of each subject.
        """

        async def attempt() -> tuple[list[Stored], int]:
            config = api.ConsumerConfig(
                deliver_policy=api.DeliverPolicy.LAST_PER_SUBJECT if newest else api.DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=None if newest else start,
                ack_policy=api.AckPolicy.NONE,
                filter_subject=subject,
                mem_storage=True,
                inactive_threshold=60.0,
            )
            info = await self.js.add_consumer(stream, config)
            pending = info.num_pending or 0
            out: list[Stored] = []
            if pending:
                subscription = await self.js.pull_subscribe_bind(info.name, stream)
                try:
                    while len(out) < min(pending, limit):
                        for message in await subscription.fetch(min(pending, limit) - len(out), _PAGE_TIMEOUT):
                            out.append(Stored(message.metadata.sequence.stream, message.subject, message.data))
                finally:
                    await subscription.unsubscribe()
            with suppress(NotFoundError):
                await self.js.delete_consumer(stream, info.name)
            return out, (out[-1].sequence + 1 if pending > len(out) else 0)

        return await self.retry(f"reading {subject}", attempt)

    async def all(self, stream: str, subject: str, newest: bool = False) -> list[Stored]:
        """Every message that matches ``subject``, in stream order."""
        if newest:
            return (await self.page(stream, subject, limit=1_000_000, newest=True))[0]
        out, start = await self.page(stream, subject)
        while start:
            more, start = await self.page(stream, subject, start)
            out += more
        return out

    async def await_value(self, subject: str, read: Callable[[], Awaitable[T | None]], timeout: float) -> T | None:
        """Call ``read`` until it returns something, woken by messages on ``subject``; None after ``timeout`` seconds.

        A message only wakes: what counts is what ``read`` finds in the stream, so a lost one costs two seconds.
        """
        arrived = asyncio.Event()

        async def wake(_: object) -> None:
            arrived.set()

        subscription = await self.retry(f"watching {subject}", lambda: self.client.subscribe(subject, cb=wake))
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout
        pause = 0.02
        try:
            async with asyncio.timeout_at(deadline):
                while (value := await read()) is None and clock() < deadline:
                    try:
                        async with asyncio.timeout(pause):
                            await arrived.wait()
                        # Subscribers hear of a message at about the time that the stream has stored it.
                        arrived.clear()
                        pause = 0.02
                    except TimeoutError:
                        pause = min(2 * pause, 2.0)
                return value
        except TimeoutError:
            return None
        finally:
            if not self.client.is_closed:
                await subscription.unsubscribe()


def publish_headers(id: str, last: int) -> dict[str, str]:
    """The duplicate window refuses a repeated id for minutes; the expected sequence refuses it for ever."""
    return {"Nats-Msg-Id": id, "Nats-Expected-Last-Subject-Sequence": str(last)}


def header_size(headers: dict[str, str]) -> int:
    """Bytes that ``headers`` take on the wire."""
    return len(b"NATS/1.0\r\n\r\n") + sum(len(f"{key}: {value}\r\n".encode()) for key, value in headers.items())
