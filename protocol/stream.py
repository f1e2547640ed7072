"""One JetStream stream: append once, read by subject, wait for a subject (asyncio).

Invariant: an append either returns the sequence under which the server has stored the message or says that the
stream holds it already; sent again after a lost answer, it changes nothing. Reads hold no state between calls,
so a restarted server costs a retry and nothing else.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from nats.js import api
from nats.js.errors import APIError, NotFoundError

from protocol.connection import Connection
from protocol.errors import PayloadLimit
from protocol.skew import Skew

T = TypeVar("T")

_WRONG_LAST_SEQUENCE = (10071, 10164)
OBJECT = "Endstate-Object"
"""Header of a message whose arrays are in the object store: their object."""

_PAGE_TIMEOUT = 5.0
_PAGE_BYTES = 64 * 1024 * 1024
"""At most, in one page."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A message as the stream keeps it."""

    sequence: int
    subject: str
    data: bytes
    time: datetime | None = None
    """When the server stored it."""
    headers: dict[str, str] = field(default_factory=dict)


class Stream:
    """The stream called ``name``."""

    def __init__(self, connection: Connection, name: str):
        self.name = name
        self.skew = Skew()
        """Between this host's clock and the server's, as of the last reads."""
        self._connection = connection

    def fits(self, data: bytes, headers: dict[str, str]) -> bool:
        """Whether one message holds ``data``; ``max_payload`` counts the headers too."""
        return len(data) + header_size(headers) <= self._connection.client.max_payload

    async def publish(self, subject: str, data: bytes, id: str, last: int, object: str = "") -> int | None:
        """Append to the stream, provided that the subject's last sequence is ``last`` (0: none yet). ``object``
        names what the message refers to in the object store.

        Returns the new message's sequence, or None when the stream holds this id already or has moved on.
        Raises :class:`PayloadLimit` when the server would refuse the size.
        """
        headers = publish_headers(id, last, object)
        if not self.fits(data, headers):
            raise PayloadLimit(
                f"{id} takes {len(data) + header_size(headers)} bytes without its arrays; the server's max_payload is "
                f"{self._connection.client.max_payload}. Raise max_payload in its configuration "
                "(bin/nats --max-payload)"
            )

        async def attempt() -> int | None:
            answer = json.loads(await self._connection.ask(subject, data, headers))
            if "error" not in answer:
                return None if answer.get("duplicate") else answer["seq"]
            if answer["error"].get("err_code") in _WRONG_LAST_SEQUENCE:
                return None
            APIError.from_error(answer["error"])

        return await self._connection.retry(f"publishing {id}", attempt, self._connection.config.publish_timeout)

    async def send(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> int:
        """Append, without a check and once: the sequence. For use inside a retried operation."""
        answer = json.loads(await self._connection.ask(subject, data, headers))
        if "error" in answer:
            APIError.from_error(answer["error"])
        return answer["seq"]

    async def purge(self, subject: str) -> None:
        """Remove every message that matches ``subject``."""
        await self._connection.retry(
            f"purging {subject}", lambda: self._connection.js.purge_stream(self.name, subject=subject)
        )

    async def last(self, subject: str) -> Stored | None:
        """The newest message of a subject, or None."""

        async def attempt() -> Stored | None:
            # A direct get may be answered by a replica that lags behind; the leader has the last word on absence.
            for direct in (True, False):
                try:
                    message = await self._connection.js.get_last_msg(self.name, subject, direct=direct)
                except NotFoundError:
                    continue
                return Stored(
                    message.seq, message.subject, message.data or b"", message.time, dict(message.headers or {})
                )
            return None

        return await self._connection.retry(f"reading {subject}", attempt)

    async def page(
        self, subject: str, start: int = 1, limit: int = 64, newest: bool = False, headers_only: bool = False
    ) -> tuple[list[Stored], int]:
        """Up to ``limit`` messages that match ``subject``, in stream order from sequence ``start``.

        Returns them and the sequence to go on from (0: that was all). ``newest``: only the last of each subject;
        ``headers_only``: without their data.
        """

        async def attempt() -> tuple[list[Stored], int]:
            config = api.ConsumerConfig(
                deliver_policy=api.DeliverPolicy.LAST_PER_SUBJECT if newest else api.DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=None if newest else start,
                ack_policy=api.AckPolicy.NONE,
                filter_subject=subject,
                headers_only=headers_only or None,
                mem_storage=True,
                inactive_threshold=60.0,
            )
            asked = time.time()
            info = await self._connection.js.add_consumer(self.name, config)
            self.skew.observe(asked, time.time(), info.created.timestamp())
            pending = info.num_pending or 0
            out: list[Stored] = []
            if pending:
                subscription = await self._connection.js.pull_subscribe_bind(info.name, self.name)
                try:
                    while len(out) < min(pending, limit):
                        for message in await subscription.fetch(min(pending, limit) - len(out), _PAGE_TIMEOUT):
                            of = message.metadata
                            headers = dict(message.headers or {})
                            out.append(Stored(of.sequence.stream, message.subject, message.data, of.timestamp, headers))
                finally:
                    await subscription.unsubscribe()
            with suppress(NotFoundError):
                await self._connection.js.delete_consumer(self.name, info.name)
            return out, (out[-1].sequence + 1 if pending > len(out) else 0)

        return await self._connection.retry(f"reading {subject}", attempt)

    async def all(self, subject: str, newest: bool = False, headers_only: bool = False) -> list[Stored]:
        """Every message that matches ``subject``, in stream order."""
        if newest or headers_only:
            return (await self.page(subject, limit=1_000_000, newest=newest, headers_only=headers_only))[0]
        # A page is held twice, here and in nats-py, which drops what exceeds its bound on memory.
        limit = max(1, _PAGE_BYTES // self._connection.client.max_payload)
        out, start = await self.page(subject, limit=limit)
        while start:
            more, start = await self.page(subject, start, limit)
            out += more
        return out

    async def subjects(self, filter: str) -> dict[str, int]:
        """How many messages each subject holds, of those that match ``filter``."""

        async def attempt() -> dict[str, int]:
            info = await self._connection.js.stream_info(self.name, filter)
            return info.state.subjects or {}

        return await self._connection.retry(f"listing {filter}", attempt)

    async def await_value(self, subject: str, read: Callable[[], Awaitable[T | None]], timeout: float) -> T | None:
        """Call ``read`` until it returns something, woken by messages on ``subject``; None after ``timeout`` seconds.

        A message only wakes: what counts is what ``read`` finds in the stream, so a lost one costs two seconds.
        """
        arrived = asyncio.Event()

        async def wake(_: object) -> None:
            arrived.set()

        subscription = await self._connection.retry(
            f"watching {subject}", lambda: self._connection.client.subscribe(subject, cb=wake)
        )
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
            if not self._connection.client.is_closed:
                await subscription.unsubscribe()


def publish_headers(id: str, last: int, object: str = "") -> dict[str, str]:
    """The duplicate window refuses a repeated id for minutes; the expected sequence refuses it for ever."""
    headers = {"Nats-Msg-Id": id, "Nats-Expected-Last-Subject-Sequence": str(last)}
    return {**headers, OBJECT: object} if object else headers


def header_size(headers: dict[str, str]) -> int:
    """Bytes that ``headers`` take on the wire."""
    return len(b"NATS/1.0\r\n\r\n") + sum(len(f"{key}: {value}\r\n".encode()) for key, value in headers.items())
