"""Claim checks: token arrays too large for one message go to the object store, their digest to the log.

Invariant: arrays that come back are byte for byte those that were deposited, or the read fails naming the
object. Objects are named by the digest of their content, so depositing the same arrays again changes nothing.
"""

from __future__ import annotations

import asyncio
import hashlib

import msgspec
from nats.js import api
from nats.js.errors import DigestMismatchError, NotFoundError
from nats.js.object_store import ObjectStore

from protocol.connection import Connection
from protocol.errors import RecordDamaged
from protocol.records import ClaimCheck, TokenArrays, Trajectory, decode, encode

_CHUNK = 128 * 1024
"""Bytes of one chunk of an object, where ``max_payload`` allows; the object store's own default."""


class ClaimStore:
    """The object store of one run."""

    def __init__(self, connection: Connection, bucket: str):
        self._connection = connection
        self._bucket = bucket

    async def _store(self) -> ObjectStore:
        return await self._connection.js.object_store(self._bucket)

    async def deposit(self, trajectory: Trajectory) -> Trajectory:
        """The same trajectory with its token arrays replaced by a claim check on them."""
        data = encode(trajectory.tokens)
        digest = hashlib.sha256(data).hexdigest()

        async def attempt() -> None:
            store = await self._store()
            try:
                info = await store.get_info(digest)
                if info.size == len(data):
                    return
            except NotFoundError:
                pass
            chunk = min(_CHUNK, self._connection.client.max_payload)
            await store.put(digest, data, api.ObjectMeta(digest, options=api.ObjectMetaOptions(max_chunk_size=chunk)))

        await self._connection.retry(f"depositing the arrays of {trajectory.id}", attempt)
        return msgspec.structs.replace(trajectory, tokens=None, claim=ClaimCheck(digest, digest, len(data)))

    async def resolve(self, trajectory: Trajectory) -> Trajectory:
        """The same trajectory with its token arrays in place; raises :class:`RecordDamaged`."""
        claim = trajectory.claim
        if claim is None:
            return trajectory

        async def attempt() -> bytes | None:
            store = await self._store()
            try:
                # nats-py waits for the chunks without a bound.
                async with asyncio.timeout(self._connection.config.publish_timeout):
                    return (await store.get(claim.object)).data
            except (NotFoundError, DigestMismatchError):
                return None

        data = await self._connection.retry(f"fetching the arrays of {trajectory.id}", attempt)
        if data is None or len(data) != claim.size or hashlib.sha256(data).hexdigest() != claim.sha256:
            raise RecordDamaged(
                f"the arrays of trajectory {trajectory.id} (object {claim.object} in {self._bucket}) are "
                f"{'missing' if data is None else 'not those that were published'}: run that step's sample again, "
                "or restore the server's JetStream folder"
            )
        tokens = decode(data, TokenArrays)
        return msgspec.structs.replace(trajectory, tokens=tokens, claim=None)
