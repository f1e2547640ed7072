"""The learner's durable consumer of batches (asyncio).

Invariant: the consumer's acknowledged floor is the last step whose update is durable or can be replayed
(rule 13). It is only ever moved up. What to train on is never taken from a delivery, which may come twice, but read
from the log by its step.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

import nats.errors
from nats.aio.msg import Msg
from nats.js import api

from protocol import subjects
from protocol.connection import Connection
from protocol.errors import RecordMissing, WaitExpired
from protocol.stream import Stream

log = logging.getLogger("endstate.bus")

_ACK_WAIT = 5.0
"""Seconds after which a batch whose learner died between delivery and acknowledgement is delivered again."""

_ACK_ANSWER = 2.0


class BatchConsumer:
    def __init__(self, connection: Connection, stream: Stream, run: str):
        self._connection = connection
        self._stream = stream
        self._run = run
        self._name = subjects.learner_consumer(run)

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

    async def acknowledge_step(self, step: int) -> None:
        """Acknowledge every batch up to ``step``'s. Steps acknowledged already stay so."""
        stored = await self._stream.last(subjects.batch(self._run, step))
        if stored is None:
            raise RecordMissing(
                f"the log of run {self._run} holds no batch for step {step} to acknowledge any more: restore the "
                "server's JetStream folder, or fork the run at that step (bin/trajectories fork)"
            )
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._connection.config.reconnect + 2 * _ACK_WAIT
        while await self.floor() < stored.sequence:
            if clock() > deadline:
                raise WaitExpired(
                    f"run {self._run}: another learner holds its batches. Is a second bin/learner running?"
                )
            if (message := await self._pull(1.0)) is not None:
                await self._ack(message)

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

    async def _pull(self, seconds: float) -> Msg | None:
        async def attempt() -> Msg | None:
            subscription = await self._connection.js.pull_subscribe_bind(self._name, self._stream.name)
            try:
                return (await subscription.fetch(1, seconds))[0]
            except nats.errors.TimeoutError:
                return None
            finally:
                await subscription.unsubscribe()

        return await self._connection.retry("pulling a batch", attempt)
