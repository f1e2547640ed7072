"""The token stream of one episode.

Invariant (rules 6 and 8): a stream only grows. Each id is either observed (mask 0) or sampled (mask 1);
each sampled id carries its behaviour log-probability and the policy version that sampled it, and no
other id has either; with truncated sampling each carries its support too, else none does. What an append
costs is what it appends, and a stream takes 5 bytes an id and 8 more where it was sampled, with 2 for a
support and 4 for each id in it.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from itertools import chain

from protocol.records import TokenArrays
from rollout_engine.tokens.ids import IdLog, Ids


class TokenStream:
    """Append-only ids with mask, log-probabilities, versions and support."""

    __slots__ = ("_ids", "_logprobs", "_mask", "_support", "_support_sizes", "_versions")

    def __init__(self) -> None:
        self._ids = IdLog()
        self._mask = bytearray()
        self._logprobs = array("f")
        self._versions = array("i")
        self._support_sizes = array("H")
        self._support = array("i")

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

    @property
    def learnt(self) -> int:
        """Length up to the last sampled id: there is nothing to learn from what follows it."""
        return self._mask.rfind(1) + 1

    def slice(self, start: int, end: int) -> list[int]:
        return self._ids.part(start, end).tolist()

    def observe(self, ids: Sequence[int]) -> None:
        self._ids.extend(ids)
        self._mask.extend(bytes(len(ids)))

    def sample(
        self,
        ids: Sequence[int],
        logprobs: Sequence[float],
        versions: Sequence[int],
        support: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Append sampled ids; raises ``ValueError`` unless each has a log-probability and a version, and a support if
        those before have one."""
        if not len(ids) == len(logprobs) == len(versions):
            raise ValueError(
                f"a generation disagrees with itself: {len(ids)} ids, {len(logprobs)} log-probabilities, "
                f"{len(versions)} versions"
            )
        if support is not None and len(support) != len(ids):
            raise ValueError(
                f"a generation disagrees with itself: {len(ids)} ids, and what {len(support)} were sampled from"
            )
        if ids and self.sampled and (support is None) == bool(self._support_sizes):
            raise ValueError("of one stream, some ids were sampled from the whole vocabulary and some from a part")
        logprobs, versions = array("f", logprobs), array("i", versions)
        sizes = array("H", map(len, support or ()))
        members = array("i", chain.from_iterable(support or ()))
        self._ids.extend(ids)
        self._mask.extend(b"\x01" * len(ids))
        self._logprobs += logprobs
        self._versions += versions
        self._support_sizes += sizes
        self._support += members

    def arrays(self) -> TokenArrays:
        """The stream as a trajectory carries it."""
        ids = self._ids.part(0, len(self._ids))
        return TokenArrays(
            _little(ids),
            bytes(self._mask),
            *map(_little, (self._logprobs, self._versions, self._support_sizes, self._support)),
        )


def _little(values: array) -> bytes:
    """The bytes of ``values``, little-endian on any machine."""
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values.tobytes()
