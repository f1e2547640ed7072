"""The token stream of one episode.

Invariant (rules 6 and 8): a stream only grows. Each id is either observed (mask 0) or sampled (mask 1);
each sampled id carries its behaviour log-probability and the policy version that sampled it, and no
other id has either.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocol.records import TokenArrays


class TokenStream:
    """Append-only ids with mask, log-probabilities and versions."""

    __slots__ = ("_ids", "_logprobs", "_mask", "_versions")

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._mask = bytearray()
        self._logprobs: list[float] = []
        self._versions: list[int] = []

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def ids(self) -> list[int]:
        """A copy of the whole stream."""
        return self._ids.copy()

    @property
    def sampled(self) -> int:
        """Number of sampled ids."""
        return len(self._logprobs)

    def slice(self, start: int, end: int) -> list[int]:
        return self._ids[start:end]

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
        self._ids.extend(ids)
        self._mask.extend(b"\x01" * len(ids))
        self._logprobs.extend(logprobs)
        self._versions.extend(versions)

    def arrays(self) -> TokenArrays:
        return TokenArrays.pack(self._ids, list(self._mask), self._logprobs, self._versions)
