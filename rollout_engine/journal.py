"""Which attempts of a step were started, and how those that left no trajectory ended (rules 3 and 12).

Invariant: an attempt is on the log before it starts, under a number that no other attempt of its sample has, whichever
engine ran it. So whoever takes over a step knows what was in flight when an engine was killed: what was started and is
neither a trajectory nor a system error was cancelled, and every attempt is in exactly one bucket.

Commits are shared: while one record is being written, whatever asks meanwhile waits for the next one, so a wave of
episodes costs a record, not one each.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping
from typing import Protocol

import trio

from protocol.records import Attempts, Ledger, TrajectoryId

Attempt = tuple[int, int, int]
"""(group, sample, attempt)."""


class AttemptLog(Protocol):
    """What the journal asks of a bus."""

    async def publish_attempts(self, record: Attempts) -> None: ...
    async def attempts(self, step: int) -> list[Attempts]: ...


class Journal:
    """The attempts of one step. Made by :meth:`open`."""

    def __init__(self, bus: AttemptLog, run: str, step: int):
        self._bus = bus
        self._run = run
        self._step = step
        self._engine = uuid.uuid4().hex[:12]
        self._number = 0
        self._started: set[Attempt] = set()
        self._failed: dict[Attempt, str] = {}
        self._next: Counter[tuple[int, int]] = Counter()
        self._starting: list[Attempt] = []
        self._failing: list[tuple[int, int, int, str]] = []
        self._asked = self._written = 0
        self._writing = trio.Lock()

    @classmethod
    async def open(cls, bus: AttemptLog, run: str, step: int) -> Journal:
        """The journal of a step, with whatever earlier engines have written."""
        journal = cls(bus, run, step)
        for record in await bus.attempts(step):
            for attempt in record.started:
                journal._note(tuple(attempt))
            journal._failed.update({(g, s, a): kind for g, s, a, kind in record.failed})
        return journal

    @property
    def groups(self) -> int:
        """Groups that any engine has started an episode of: they were launched, up to the last of them."""
        return max((group + 1 for group, *_ in self._started), default=0)

    async def start(self, group: int, sample: int) -> TrajectoryId:
        """The id of the sample's next attempt, once the log says that it starts."""
        attempt = (group, sample, self._next[group, sample])
        self._note(attempt)
        self._starting.append(attempt)
        await self._commit()
        return TrajectoryId(self._run, self._step, *attempt)

    def fail(self, id: TrajectoryId, kind: str) -> None:
        """A system error ended the attempt. Written with the next one that starts, or by :meth:`flush`."""
        attempt = (id.group, id.sample, id.attempt)
        self._failed[attempt] = kind
        self._failing.append((*attempt, kind))

    async def flush(self) -> None:
        """Write what has failed since the last start, and starts that were cancelled while they were being written."""
        if self._starting or self._failing:
            await self._commit()

    def ledger(self, buckets: Mapping[Attempt, str], carried: int = 0) -> Ledger:
        """Where every attempt ended. ``buckets``: of those that left a trajectory; of ``carried`` episodes of earlier
        steps, that this step trains on."""
        started = self._started | buckets.keys()
        counts = Counter(buckets.values())
        counts["trained"] += carried
        errors: Counter[str] = Counter()
        for attempt in started - buckets.keys():
            if attempt in self._failed:
                errors[self._failed[attempt]] += 1
            else:
                counts["cancelled"] += 1
        ledger = Ledger(len(started), system_error=dict(sorted(errors.items())), carried=carried, **counts)
        ledger.check()
        return ledger

    def _note(self, attempt: Attempt) -> None:
        group, sample, number = attempt
        self._started.add(attempt)
        self._next[group, sample] = max(self._next[group, sample], number + 1)

    async def _commit(self) -> None:
        """Write all that waits. Whoever holds the lock writes for all that asked before it began."""
        self._asked += 1
        mine = self._asked
        async with self._writing:
            if self._written >= mine:
                return
            upto = self._asked
            started, self._starting = self._starting, []
            failed, self._failing = self._failing, []
            number, self._number = self._number, self._number + 1
            record = Attempts(self._run, self._step, self._engine, number, tuple(started), tuple(failed))
            try:
                await self._bus.publish_attempts(record)
            except BaseException:
                # Cancelled or cut off: it may be on the log or not, so whoever asks next writes it once more.
                self._starting = started + self._starting
                self._failing = failed + self._failing
                raise
            self._written = upto
