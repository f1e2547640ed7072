"""The token stream of one episode.

Invariant (rules 6 and 8): a stream only grows. Each id is either observed (mask 0) or sampled (mask 1);
each sampled id carries its behaviour log-probability and the policy version that sampled it, and no
other id has either. What an append costs is what it appends, and a stream takes 5 bytes an id and 8 more
where it was sampled.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

from protocol.records import TokenArrays
from rollout_engine.tokens.ids import IdLog, Ids


class TokenStream:
    """Append-only ids with mask, log-probabilities and versions."""

    __slots__ = ("_ids", "_logprobs", "_mask", "_versions")

    def __init__(self) -> None:
        self._ids = IdLog()
        self._mask = bytearray()
        self._logprobs = array("f")
        self._versions = array("i")

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def ids(self) -> Ids:
        """The stream so far, which stays as it is while the stream grows."""
        return self._ids.view()

    @property
    def sampled(self) -> int:
        """Number of sampled ids."""
        return len(self._logprobs)

    def slice(self, start: int, end: int) -> list[int]:
        return self._ids.part(start, end).tolist()

    def observe(self, ids: Sequence[int]) -> None:
        self._ids.extend(ids)
        self._mask.extend(bytes(len(ids)))

    def sample(self, ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]) -> None:
        """Append sampled ids; raises ``ValueError`` unless each has a log-probability and a version."""
        if not len(ids) == len(logprobs) == len(versions):
            raise ValueError(
                f"a generation disagrees with itself: {len(ids)} ids, {len(logprobs)} log-probabilities, "
                f"{len(versions)} versions"
            )
        logprobs, versions = array("f", logprobs), array("i", versions)
        self._ids.extend(ids)
        self._mask.extend(b"\x01" * len(ids))
        self._logprobs += logprobs
        self._versions += versions

    def arrays(self) -> TokenArrays:
        """The stream as a trajectory carries it."""
        ids = self._ids.part(0, len(self._ids))
        return TokenArrays(_little(ids), bytes(self._mask), _little(self._logprobs), _little(self._versions))


def _little(values: array) -> bytes:
    """The bytes of ``values``, little-endian on any machine."""
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values.tobytes()
