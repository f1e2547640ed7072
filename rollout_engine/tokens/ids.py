"""Token ids that only grow, and views of them.

Invariant: a view is the ids that were there when it was taken, for ever; appending changes no view. Taking a view
costs nothing, and writing it as JSON costs the ids that are new since the last one, then one copy of the bytes: a
request for the n-th turn of an episode is as cheap as one for its first. An id takes 4 bytes, and about 7 as text
once it has been asked for.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence

import msgspec


class IdLog:
    """Append-only ids."""

    __slots__ = ("_ids", "_text", "_written")

    def __init__(self) -> None:
        self._ids = array("i")
        self._text = bytearray()
        self._written = 0

    def __len__(self) -> int:
        return len(self._ids)

    def extend(self, ids: Iterable[int]) -> None:
        """Append all of ``ids``, or none of them where one is no int32."""
        self._ids += array("i", ids)

    def view(self) -> Ids:
        """The ids so far."""
        return Ids(self, len(self._ids))

    def part(self, start: int, end: int) -> array[int]:
        """A copy of a stretch, as an array of int32."""
        return self._ids[start:end]

    def text(self, count: int) -> bytes:
        """The first ``count`` ids as a JSON array."""
        if count < self._written:  # of a view that the log has outgrown
            return msgspec.json.encode(self._ids[:count].tolist())
        if count > self._written:
            fresh = msgspec.json.encode(self._ids[self._written : count].tolist())
            self._text += b"," if self._written else b""
            self._text += memoryview(fresh)[1:-1]
            self._written = count
        return b"[%b]" % self._text


class Ids(Sequence[int]):
    """The first ids of an :class:`IdLog`."""

    __slots__ = ("_count", "_log")

    def __init__(self, log: IdLog, count: int) -> None:
        self._log = log
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, at: int | slice) -> int | list[int]:
        if isinstance(at, slice):
            return [self[place] for place in range(self._count)[at]]
        return self._log.part(place := range(self._count)[at], place + 1)[0]

    def __iter__(self) -> Iterator[int]:
        return iter(self.tolist())

    def __eq__(self, other: object) -> bool:
        return self.tolist() == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None

    def tolist(self) -> list[int]:
        """A list of the ids; this costs their number."""
        return self._log.part(0, self._count).tolist()

    def json(self) -> bytes:
        """The ids as a JSON array."""
        return self._log.text(self._count)


def raw_json(ids: Sequence[int]) -> msgspec.Raw:
    """``ids`` as a JSON array inside a larger message; of :class:`Ids`, only what is new is encoded."""
    return msgspec.Raw(ids.json() if isinstance(ids, Ids) else msgspec.json.encode(list(ids)))
