"""The log of one run over an open connection: records in, records out (asyncio).

Invariant: a trajectory, a batch and a policy version each enter the log at most once, for ever (rule 10),
and whatever is read was read from the log, not remembered (rule 12).

Use :mod:`protocol.bus` (trio or asyncio) or :mod:`learner.batches` (blocking); both stand on this.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from nats.js import api
from nats.js.errors import APIError, BucketNotFoundError, NotFoundError
from nats.js.kv import _is_key_valid as is_key_valid

from protocol import subjects
from protocol.claims import ClaimStore
from protocol.config import Nats
from protocol.connection import Connection
from protocol.consumer import BatchConsumer
from protocol.errors import ForkUnfinished, RecordDamaged, RecordMissing, RecordPurged, RunNotFound, WaitExpired
from protocol.records import (
    ActorStatus,
    Attempts,
    Batch,
    Event,
    Horizon,
    Origin,
    PolicyVersion,
    Trajectory,
    TrajectoryId,
    decode,
    encode,
)
from protocol.retention import Retention
from protocol.stream import Stored, Stream, publish_headers
from protocol.together import each

_NAME_IN_USE = 10058
_LOST = (
    ". It was there when it was referred to: restore the server's JetStream folder, or fork the run from that step "
    "(bin/trajectories fork)"
)
_READERS = 16
"""Records read at once by :meth:`AsyncioBus.fetch`."""


class AsyncioBus:
    """One run's log. Every method may raise the errors of :mod:`protocol.errors`."""

    def __init__(self, config: Nats, run: str):
        self.run = subjects.check_run(run)
        self.config = config
        self.connection = Connection(config)
        self.stream = Stream(self.connection, subjects.stream(run))
        self.claims = ClaimStore(self.connection, subjects.objects_bucket(run))
        self.consumer = BatchConsumer(self.connection, self.stream, run)
        settled = config.full_wait + 2 * config.reconnect
        self.retention = Retention(self.stream, self.claims, run, settled)
        self._heartbeats = Stream(self.connection, f"KV_{subjects.actors_bucket(run)}")

    # -- life --------------------------------------------------------------------------------------

    async def open(self, create: bool = True, forking: bool = False) -> None:
        """Connect, and create the run's stream and buckets where absent.

        ``create=False`` raises :class:`RunNotFound` instead, naming the runs that the server holds. Raises
        :class:`ForkUnfinished` for a run that is still being made, unless it is ``forking`` that opens it.
        """
        await self.connection.open()
        try:
            await self.connection.retry(f"opening run {self.run}", lambda: self._establish(create))
            if not forking:
                await self._check_whole()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await self.connection.close()

    async def _establish(self, create: bool) -> None:
        js = self.connection.js
        try:
            info = await js.stream_info(self.stream.name)
            if create and set(subjects.stream_subjects(self.run)) - set(info.config.subjects or ()):
                # Made before a kind of record was there.
                await js.update_stream(info.config.evolve(subjects=subjects.stream_subjects(self.run)))
        except NotFoundError as error:
            if not create:
                held = await self._runs()
                raise RunNotFound(
                    f"the NATS server at {self.config.url} holds no run {self.run!r}; "
                    + (f"it holds: {', '.join(held)}" if held else "it holds none")
                    + ". A run is made when its bin/learner, bin/actor or bin/rollouts starts"
                ) from error
            await _created(
                js.add_stream(
                    name=self.stream.name,
                    subjects=subjects.stream_subjects(self.run),
                    storage=api.StorageType.FILE,
                    retention=api.RetentionPolicy.LIMITS,
                    # A full disk refuses new records; it never drops old ones.
                    discard=api.DiscardPolicy.NEW,
                    allow_direct=True,
                )
            )
        if not create:
            return
        try:
            await js.key_value(subjects.actors_bucket(self.run))
        except BucketNotFoundError:
            await _created(js.create_key_value(bucket=subjects.actors_bucket(self.run), history=1, direct=True))
        try:
            await js.object_store(subjects.objects_bucket(self.run))
        except BucketNotFoundError:
            await _created(js.create_object_store(subjects.objects_bucket(self.run)))
        await self.consumer.establish()

    async def _check_whole(self) -> None:
        origin = await self.origin()
        if origin is not None and origin.step > 0 and await self.batch(origin.step - 1) is None:
            raise ForkUnfinished(
                f"run {self.run} is a fork of run {origin.parent} at step {origin.step} that was not completed: run "
                f"`bin/trajectories fork --step {origin.step} --as {self.run}` with {origin.parent}'s configuration "
                "again, it goes on where it was"
            )

    async def _runs(self) -> list[str]:
        # Bounded by one page (256 streams): this is for an error message.
        names = [info.config.name or "" for info in await self.connection.js.streams_info()]
        return sorted(name.removeprefix("endstate-") for name in names if name.startswith("endstate-"))

    # -- trajectories ------------------------------------------------------------------------------

    async def publish_trajectory(self, trajectory: Trajectory) -> bool:
        """Log one trajectory; False when its (step, group, sample) is in the log already.

        Arrays that don't fit in one message go to the object store (claim check).
        """
        self._check(trajectory.id.run)
        subject, id = subjects.trajectory(trajectory.id), str(trajectory.id)
        tokens, limit = trajectory.tokens, self.connection.client.max_payload
        # Arrays that can't fit aren't written into a message in vain.
        data = encode(trajectory) if tokens is None or tokens.encoded_size <= limit else None
        if data is None or (tokens is not None and not self.stream.fits(data, publish_headers(id, 0))):
            trajectory = await self.claims.deposit(trajectory)
            data = encode(trajectory)
        object = "" if trajectory.claim is None else trajectory.claim.object
        if await self.stream.publish(subject, data, id, last=0, object=object) is not None:
            return True
        if trajectory.claim is not None:
            await self._withdraw(trajectory)
        return False

    async def _withdraw(self, refused: Trajectory) -> None:
        """Remove the arrays of a trajectory that the log has refused, unless it is the one that the log holds."""
        stored = await self.stream.last(subjects.trajectory(refused.id))
        kept = None if stored is None else self._decode(stored, Trajectory)
        if kept is None or kept.claim is None or kept.claim.object != refused.claim.object:
            await self.claims.delete(refused.claim.object)

    async def trajectories(self, step: int, arrays: bool = True) -> list[Trajectory]:
        """All logged trajectories of a step, by group and sample; ``arrays=False`` leaves claim checks unresolved."""
        stored = await self.stream.all(subjects.trajectories(self.run, step))
        if not stored:
            await self._check_kept(step)
        out = [self._decode(message, Trajectory) for message in stored]
        return sorted(await each(self.claims.resolve, out, _READERS) if arrays else out, key=lambda t: t.id)

    async def fetch(self, ids: Sequence[TrajectoryId]) -> list[Trajectory]:
        """These trajectories, in this order, arrays in place.

        Raises :class:`RecordMissing` naming the first that the log doesn't hold (or holds of another attempt).
        """
        for id in ids:
            self._check(id.run)
        return await each(self._fetch_one, ids, _READERS)

    async def _fetch_one(self, id: TrajectoryId) -> Trajectory:
        stored = await self.stream.last(subjects.trajectory(id))
        if stored is None:
            await self._check_kept(id.step)
            raise RecordMissing(f"the log of run {self.run} holds no trajectory {id}{_LOST}")
        trajectory = self._decode(stored, Trajectory)
        if trajectory.id != id:
            raise RecordMissing(
                f"the log of run {self.run} holds {trajectory.id} in the place of trajectory {id}{_LOST}"
            )
        return await self.claims.resolve(trajectory)

    async def steps(self) -> list[int]:
        """Steps of which the log holds a trajectory, ascending."""
        found = await self.stream.subjects(subjects.trajectories(self.run))
        return sorted({subjects.step_of(subject) for subject in found})

    # -- attempts ----------------------------------------------------------------------------------

    async def publish_attempts(self, record: Attempts) -> None:
        """Log attempts that are about to start, and those that failed."""
        self._check(record.run)
        subject = subjects.attempts(self.run, record.step, record.engine, record.number)
        id = f"{self.run}/attempts/{record.step}/{record.engine}/{record.number}"
        await self.stream.publish(subject, encode(record), id, last=0)

    async def attempts(self, step: int) -> list[Attempts]:
        """All records of attempts of a step, of every engine that worked on it, in the order they were logged."""
        stored = await self.stream.all(subjects.attempts(self.run, step))
        return [self._decode(message, Attempts) for message in stored]

    # -- batches -----------------------------------------------------------------------------------

    async def publish_batch(self, batch: Batch) -> bool:
        """Log a step's manifest; False when the step has one already."""
        self._check(batch.run)
        subject = subjects.batch(self.run, batch.step)
        id = f"{self.run}/batch/{batch.step}"
        return await self.stream.publish(subject, encode(batch), id, last=0) is not None

    async def batch_steps(self) -> list[int]:
        """Steps that have a manifest, ascending."""
        found = await self.stream.subjects(subjects.batch(self.run, "*"))
        return sorted(subjects.step_of(subject) for subject in found)

    async def batch(self, step: int) -> Batch | None:
        """A step's manifest, or None."""
        return await self._newest(subjects.batch(self.run, step), Batch)

    async def wait_batch(self, step: int, timeout: float | None = None) -> Batch:
        """A step's manifest, as soon as it is there; :class:`WaitExpired` after ``timeout`` (``nats.wait``) seconds."""
        bound = self.config.wait if timeout is None else timeout
        subject = subjects.batch(self.run, step)
        batch = await self.stream.await_value(subject, lambda: self.batch(step), bound)
        if batch is None:
            raise WaitExpired(f"run {self.run}: no batch for step {step} within {bound:g} s. Is bin/rollouts running?")
        return batch

    # -- policy ------------------------------------------------------------------------------------

    async def publish_policy(self, version: PolicyVersion) -> bool:
        """Log a policy version; False when the log holds this one or a later one already."""
        self._check(version.run)
        id = f"{self.run}/policy/{version.version}"
        return await self._advance(subjects.policy(self.run), version, id, lambda record: record.version)

    async def policy(self) -> PolicyVersion | None:
        """The newest policy version, or None."""
        return await self._newest(subjects.policy(self.run), PolicyVersion)

    async def policies(self) -> list[PolicyVersion]:
        """Every policy version of the run, ascending."""
        stored = await self.stream.all(subjects.policy(self.run))
        return [self._decode(message, PolicyVersion) for message in stored]

    async def wait_policy(self, version: int, timeout: float | None = None) -> PolicyVersion:
        """The newest policy version, as soon as it is ``version`` or later.

        Raises :class:`WaitExpired` after ``timeout`` (``nats.wait``) seconds.
        """
        bound = self.config.wait if timeout is None else timeout

        async def read() -> PolicyVersion | None:
            newest = await self.policy()
            return newest if newest is not None and newest.version >= version else None

        policy = await self.stream.await_value(subjects.policy(self.run), read, bound)
        if policy is None:
            raise WaitExpired(
                f"run {self.run}: no policy version {version} within {bound:g} s. Is bin/learner running?"
            )
        return policy

    # -- retention and origin ----------------------------------------------------------------------

    async def release(self, before: int, purge: bool) -> None:
        """Nobody will ask for a batch of a step before ``before`` again, not even to restore a checkpoint.

        Collects objects that belong to no trajectory. With ``purge``, removes the trajectories of those steps, but
        for what batches from ``before`` on are made of; manifests stay.
        """
        first = 0
        if purge:
            first, step = before, before
            while (batch := await self.batch(step)) is not None:
                first = min([first, *(id.step for group in batch.groups for id in group.trajectories)])
                step += 1
            await self.publish_horizon(first)
            await self.retention.purge(first)
        await self.retention.collect(first, before)

    async def horizon(self) -> int:
        """The first step whose trajectories the log keeps: 0 unless retention has removed some."""
        found = await self._newest(subjects.horizon(self.run), Horizon)
        return 0 if found is None else found.first

    async def publish_horizon(self, first: int) -> bool:
        """Log that the trajectories of steps before ``first`` aren't kept; False when it says so already."""
        record, id = Horizon(self.run, first), f"{self.run}/horizon/{first}"
        return await self._advance(subjects.horizon(self.run), record, id, lambda record: record.first)

    async def publish_origin(self, origin: Origin) -> bool:
        """Log where this run was forked from; False when that is logged already."""
        self._check(origin.run)
        id = f"{self.run}/origin"
        return await self.stream.publish(subjects.origin(self.run), encode(origin), id, last=0) is not None

    async def origin(self) -> Origin | None:
        """Where this run was forked from; None when it is no fork."""
        return await self._newest(subjects.origin(self.run), Origin)

    async def _check_kept(self, step: int) -> None:
        """Raise :class:`RecordPurged` where retention has removed the trajectories of ``step``."""
        first = await self.horizon()
        if step < first:
            raise RecordPurged(
                f"run {self.run}: the trajectories of step {step} were removed, as nats.retain: checkpoint says; the "
                f"log keeps those from step {first} on. What the others taught is in the learner's checkpoints"
            )

    # -- actors and progress -----------------------------------------------------------------------

    async def put_actor(self, status: ActorStatus) -> None:
        """Record an actor's heartbeat under its id."""
        if not is_key_valid(status.id):
            raise ValueError(f"actor id {status.id!r} can't be a key: use letters, digits and any of - _ = . /")

        async def attempt() -> None:
            # What a put of the key-value store is; asking for the bucket first would double the requests.
            await self._heartbeats.send(f"$KV.{subjects.actors_bucket(self.run)}.{status.id}", encode(status))

        await self.connection.retry(f"heartbeat of actor {status.id}", attempt, self.config.publish_timeout)

    async def actors(self) -> list[ActorStatus]:
        """The last heartbeat of every actor that ever registered, by id.

        ``time`` is when the server received it, by this host's clock, so that it can be compared with ours: what the
        actor's own clock shows counts for nothing.
        """
        stored = await self._heartbeats.all(f"$KV.{subjects.actors_bucket(self.run)}.>", newest=True)
        ahead = self._heartbeats.skew.ahead
        heard = [
            msgspec.structs.replace(self._decode(m, ActorStatus), time=m.time.timestamp() + ahead)
            for m in stored
            if m.data
        ]
        return sorted(heard, key=lambda status: status.id)

    async def emit(self, kind: str, data: dict[str, Any]) -> None:
        """Tell whoever listens now. Not kept, not retried: progress never holds up work."""
        event = Event(kind, time.time(), data)
        await self.connection.announce(subjects.event(self.run, kind), encode(event))

    # -- shared ------------------------------------------------------------------------------------

    async def _newest(self, subject: str, kind: type):
        """The last record of a subject, or None."""
        stored = await self.stream.last(subject)
        return None if stored is None else self._decode(stored, kind)

    async def _advance(self, subject: str, record: msgspec.Struct, id: str, order: Callable[[Any], int]) -> bool:
        """Log a record of a subject whose records only go up in ``order``; False: it holds this or a later one."""
        while True:
            stored = await self.stream.last(subject)
            if stored is not None and order(self._decode(stored, type(record))) >= order(record):
                return False
            last = 0 if stored is None else stored.sequence
            if await self.stream.publish(subject, encode(record), id, last) is not None:
                return True

    def _check(self, run: str) -> None:
        if run != self.run:
            raise ValueError(f"a record of run {run!r} given to the bus of run {self.run!r}")

    def _decode(self, stored: Stored, kind: type):
        try:
            return decode(stored.data, kind)
        except msgspec.ValidationError as error:
            raise RecordDamaged(
                f"{stored.subject} (sequence {stored.sequence}) is not a {kind.__name__} of this version: {error}. "
                "Read the run with the version that wrote it"
            ) from error


async def _created(creation) -> None:
    """Await a creation that another process may win."""
    try:
        await creation
    except APIError as error:
        if error.err_code != _NAME_IN_USE:
            raise
