"""The learner's durable consumer of batches (asyncio).

Invariant: the consumer's acknowledged floor is the last step whose update is durable or can be replayed
(rule 13). One batch is out at a time, and while it is, it is kept from being delivered to anyone else.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass

import nats.errors
from nats.aio.msg import Msg
from nats.js import api
from nats.js.errors import APIError

from protocol import subjects
from protocol.connection import Connection
from protocol.errors import RecordMissing, WaitExpired
from protocol.records import Batch, decode
from protocol.stream import Stream

log = logging.getLogger("endstate.bus")

_ACK_WAIT = 15.0
"""Seconds after which a batch whose learner died is delivered again."""

_ACK_ANSWER = 2.0

_PULL = 5.0
"""Seconds one pull waits; longer waits are made of several, so that a restarted server loses none."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """A batch delivered by the consumer, and the message to acknowledge."""

    batch: Batch
    message: Msg


class BatchConsumer:
    def __init__(self, connection: Connection, stream: Stream, run: str):
        self._connection = connection
        self._stream = stream
        self._run = run
        self._name = subjects.learner_consumer(run)
        self._keeping: dict[int, asyncio.Task[None]] = {}

    async def establish(self) -> None:
        """Create the durable consumer where absent."""
        await self._connection.js.add_consumer(
            self._stream.name,
            durable_name=self._name,
            filter_subject=subjects.batch(self._run, "*"),
            deliver_policy=api.DeliverPolicy.ALL,
            ack_policy=api.AckPolicy.EXPLICIT,
            ack_wait=_ACK_WAIT,
            max_ack_pending=1,
        )

    async def close(self) -> None:
        """Stop keeping deliveries: what was not acknowledged goes to the next consumer."""
        keeping, self._keeping = list(self._keeping.values()), {}
        for task in keeping:
            task.cancel()
        await asyncio.gather(*keeping, return_exceptions=True)

    async def next(self, timeout: float) -> Pulled:
        """The first batch not acknowledged yet, kept for this caller until acknowledged or closed.

        Raises :class:`WaitExpired` after ``timeout`` seconds.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout
        while (left := deadline - clock()) > 0:
            pulled = await self._pull(min(left, _PULL))
            if pulled is not None:
                self._keeping[pulled.batch.step] = asyncio.create_task(self._keep(pulled.message))
                return pulled
        raise WaitExpired(f"run {self._run}: no batch to consume within {timeout:g} s. Is bin/rollouts running?")

    async def acknowledge(self, pulled: Pulled) -> None:
        """Acknowledge a delivery of :meth:`next`; again, after a restart, where needed."""
        if keeping := self._keeping.pop(pulled.batch.step, None):
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
        await self.acknowledge_step(pulled.batch.step, pulled.message)

    async def acknowledge_step(self, step: int, message: Msg | None = None) -> None:
        """Acknowledge every batch up to ``step``'s. Steps acknowledged already stay so."""
        stored = await self._stream.last(subjects.batch(self._run, step))
        if stored is None:
            raise RecordMissing(f"the log of run {self._run} holds no batch for step {step} to acknowledge")
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._connection.config.reconnect + 2 * _ACK_WAIT
        while await self.floor() < stored.sequence:
            if clock() > deadline:
                raise WaitExpired(
                    f"run {self._run}: another learner holds its batches. Is a second bin/learner running?"
                )
            if message is None and (pulled := await self._pull(1.0)) is not None:
                message = pulled.message
            if message is not None:
                await self._ack(message)
                message = None

    async def floor(self) -> int:
        """Stream sequence up to which every batch is acknowledged (0: none)."""

        async def attempt() -> int:
            return (await self._connection.js.consumer_info(self._stream.name, self._name)).ack_floor.stream_seq

        return await self._connection.retry("reading the learner's position", attempt)

    async def _ack(self, message: Msg) -> None:
        async def attempt() -> None:
            # No answer: the delivery has expired. Whether it counted is read from the floor.
            with suppress(TimeoutError):
                async with asyncio.timeout(_ACK_ANSWER):
                    await self._connection.ask(message.reply, b"+ACK")

        await self._connection.retry("acknowledging a batch", attempt)

    async def _pull(self, seconds: float) -> Pulled | None:
        async def attempt() -> Msg | None:
            subscription = await self._connection.js.pull_subscribe_bind(self._name, self._stream.name)
            try:
                return (await subscription.fetch(1, seconds))[0]
            except nats.errors.TimeoutError:
                return None
            finally:
                await subscription.unsubscribe()

        message = await self._connection.retry("pulling a batch", attempt)
        return None if message is None else Pulled(decode(message.data, Batch), message)

    async def _keep(self, message: Msg) -> None:
        while True:
            await asyncio.sleep(_ACK_WAIT / 3)
            try:
                await message.in_progress()
            except (nats.errors.Error, APIError, OSError) as error:
                log.debug("keeping %s: %r", message.subject, error)
