"""Claim checks: token arrays too large for one message go to the object store, their digest to the log.

Invariant: arrays that come back are byte for byte those that were deposited, or the read fails naming the
object. An object's name says whose arrays it holds and their digest, so depositing the same arrays again changes
nothing, other arrays never take their place, and which step an object belongs to is known from its name alone.

Objects are laid out as nats-py's and the ``nats object`` command do; what is done here, and not by nats-py, is to
send chunks without waiting for each, and to read them without a push subscription, which drops what comes too fast.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from contextlib import suppress
from datetime import UTC, datetime

import msgspec
import nats.errors
from nats.js import api
from nats.js.errors import APIError

from protocol.connection import Connection
from protocol.errors import RecordDamaged
from protocol.records import ClaimCheck, TokenArrays, Trajectory, TrajectoryId, decode, encode
from protocol.stream import Stream
from protocol.together import each

_CHUNK = 128 * 1024
"""Bytes of one chunk of an object, where ``max_payload`` allows; the object store's own default."""

_IN_FLIGHT = 2
"""Chunks of one object that are sent before the first is acknowledged. More would only lie in buffers."""

_HEADROOM = 1024
"""Bytes of ``max_payload`` left to the headers of a chunk."""


class StoredObject(msgspec.Struct, frozen=True):
    """What the object store says of one object: the part of its entry that is needed here."""

    name: str
    nuid: str
    """Names the chunks."""
    size: int
    deleted: bool = False


class ClaimStore:
    """The object store of one run."""

    def __init__(self, connection: Connection, bucket: str):
        self._connection = connection
        self._bucket = bucket
        self.stream = Stream(connection, f"OBJ_{bucket}")

    async def deposit(self, trajectory: Trajectory) -> Trajectory:
        """The same trajectory with its token arrays replaced by a claim check on them."""
        data = encode(trajectory.tokens)
        digest = hashlib.sha256(data).digest()
        name = object_name(trajectory.id, digest.hex())

        async def attempt() -> None:
            found = await self.find(name)
            if found is None or found.size != len(data):
                await self._put(name, data, digest)

        await self._connection.retry(f"depositing the arrays of {trajectory.id}", attempt)
        return msgspec.structs.replace(trajectory, tokens=None, claim=ClaimCheck(name, digest.hex(), len(data)))

    async def resolve(self, trajectory: Trajectory) -> Trajectory:
        """The same trajectory with its token arrays in place; raises :class:`RecordDamaged`."""
        claim = trajectory.claim
        if claim is None:
            return trajectory
        found = await self.find(claim.object)
        data = b"" if found is None else b"".join(s.data for s in await self.stream.all(self._chunks(found.nuid)))
        if len(data) != claim.size or hashlib.sha256(data).hexdigest() != claim.sha256:
            raise RecordDamaged(
                f"the arrays of trajectory {trajectory.id} (object {claim.object} in {self._bucket}) are "
                f"{'not those that were published' if data else 'missing'}: restore the server's JetStream folder, or "
                "fork the run from that step (bin/trajectories fork)"
            )
        tokens = decode(data, TokenArrays)
        return msgspec.structs.replace(trajectory, tokens=tokens, claim=None)

    async def find(self, name: str) -> StoredObject | None:
        """The entry of an object, or None."""
        stored = await self.stream.last(self._entry(name))
        found = None if stored is None or not stored.data else decode(stored.data, StoredObject)
        return None if found is None or found.deleted else found

    async def all(self) -> list[tuple[StoredObject, datetime]]:
        """The entries of all objects, and when each was stored."""
        stored = await self.stream.all(f"$O.{self._bucket}.M.>", newest=True)
        found = [(decode(s.data, StoredObject), s.time) for s in stored if s.data]
        return [(entry, time) for entry, time in found if not entry.deleted]

    async def chunk_names(self) -> set[str]:
        """The names of all chunks' subjects, those of no object among them."""
        found = await self.stream.subjects(self._chunks(">"))
        return {subject.removeprefix(self._chunks("")) for subject in found}

    async def delete(self, name: str) -> None:
        """Remove an object, if it is there. Its entry goes last, so that a kill leaves nothing that can't be found."""
        if found := await self.find(name):
            await self.delete_chunks(found.nuid)
        await self.stream.purge(self._entry(name))

    async def delete_chunks(self, nuid: str) -> None:
        await self.stream.purge(self._chunks(nuid))

    async def chunks_stored(self, nuid: str) -> datetime | None:
        """When the last of these chunks was; None: there are none."""
        stored = await self.stream.last(self._chunks(nuid))
        return None if stored is None else stored.time

    async def _put(self, name: str, data: bytes, digest: bytes) -> None:
        # Chunks of every try have a subject of their own: what an interrupted one left is never mixed in.
        client = self._connection.client
        nuid = f"{name.rpartition('.')[0].replace('.', '-')}-{client.new_inbox().rpartition('.')[2]}"
        size = min(_CHUNK, client.max_payload - _HEADROOM)
        pieces = [data[start : start + size] for start in range(0, len(data), size)]
        try:
            places = await each(lambda piece: self.stream.send(self._chunks(nuid), piece), pieces, _IN_FLIGHT)
            if places != sorted(places):
                raise ConnectionError(f"chunks of {name} were stored out of order")
            entry = {
                "name": name,
                "bucket": self._bucket,
                "nuid": nuid,
                "size": len(data),
                "chunks": len(pieces),
                "mtime": datetime.now(UTC).isoformat(),
                "digest": f"SHA-256={base64.urlsafe_b64encode(digest).decode()}",
                "options": {"max_chunk_size": size},
            }
            await self.stream.send(self._entry(name), json.dumps(entry).encode(), {api.Header.ROLLUP: "sub"})
        except APIError:
            # A server without room shouldn't keep what every try leaves. Other leavings are collected by retention.
            with suppress(nats.errors.Error, TimeoutError):
                await self._connection.js.purge_stream(self.stream.name, subject=self._chunks(nuid))
            raise

    def _entry(self, name: str) -> str:
        return f"$O.{self._bucket}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"

    def _chunks(self, nuid: str) -> str:
        return f"$O.{self._bucket}.C.{nuid}"


def object_name(id: TrajectoryId, sha256: str) -> str:
    """Name of the object that holds the arrays of ``id``, of digest ``sha256``."""
    return f"{id.step}.{id.group}.{id.sample}.{id.attempt}.{sha256[:32]}"


def step_of(name: str) -> int | None:
    """The step that an object, or a name of chunks, belongs to; None where the name is none of ours."""
    step = re.match(r"(\d+)[.-]\d+[.-]\d+[.-]\d+[.-]", name)
    return None if step is None else int(step[1])
