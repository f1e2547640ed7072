"""Filling one synchronous batch: which groups to launch, which to admit, and the ledger.

A pure state machine: it owns no task and does no I/O.

Invariants (rules 3 and 11): groups are launched in order of their number and admitted in that order,
never in the order in which they finish, so short episodes are not favoured. No more groups are launched
than are needed if all those pending come out informative, and never more than ``max_groups``. Every
episode counted as started lies in exactly one bucket of the ledger.
"""

from __future__ import annotations

from collections import Counter

from protocol.records import Batch, GroupRecord, Ledger
from rollout_engine.group import GroupResult


class BatchState:
    """Progress of one step towards ``groups`` informative groups."""

    def __init__(self, groups: int, max_groups: int):
        self._groups = groups
        self._max_groups = max_groups
        self._launched = 0
        self._settled: dict[int, GroupResult] = {}

    @property
    def pending(self) -> int:
        return self._launched - len(self._settled)

    @property
    def informative(self) -> int:
        return sum(result.informative for result in self._settled.values())

    @property
    def launched(self) -> int:
        return self._launched

    @property
    def needed(self) -> int:
        """Groups to launch now, so that the batch is full if all those pending come out informative."""
        wanted = self._groups - self.informative - self.pending
        return max(0, min(wanted, self._max_groups - self._launched))

    def launch(self) -> list[int]:
        """Numbers of the groups to launch now; they count as pending from here on."""
        first = self._launched
        self._launched += self.needed
        return list(range(first, self._launched))

    def settle(self, result: GroupResult) -> None:
        if result.group in self._settled or result.group >= self._launched:
            raise ValueError(f"group {result.group} was not pending")
        self._settled[result.group] = result

    @property
    def done(self) -> bool:
        """Nothing pending, and nothing more to launch."""
        return self.pending == 0 and (self.full or self._launched == self._max_groups)

    @property
    def full(self) -> bool:
        return self.informative >= self._groups

    def close(self, run: str, step: int, group_size: int, seconds: float) -> Batch:
        """The manifest of the finished step; raises ``ValueError`` when its ledger does not sum."""
        if not self.done:
            raise ValueError(f"step {step} is not done: {self.pending} groups pending")
        records, counts, errors = [], Counter(), Counter()
        started = trained = 0
        for number in sorted(self._settled):
            result = self._settled[number]
            complete = [sample for sample in result.samples if sample is not None]
            if result.informative and trained < self._groups:
                bucket, trained = "trained", trained + 1
            elif result.whole and not result.informative:
                bucket = "zero_variance"
            else:
                bucket = "surplus"
            counts[bucket] += len(complete)
            errors += result.errors
            started += result.started
            if result.whole:
                ids, rewards = tuple(s.id for s in complete), tuple(s.reward for s in complete)
                versions = tuple(sorted({version for sample in complete for version in sample.versions}))
                records.append(GroupRecord(number, result.task, ids, rewards, bucket, versions))
        ledger = Ledger(started=started, system_error=dict(sorted(errors.items())), **counts)
        ledger.check()
        outcome = "full" if self.full else "short"
        oldest = min((record.versions[0] for record in records), default=step)
        return Batch(run, step, oldest, group_size, tuple(records), ledger, outcome, round(seconds, 3))
