"""Filling one batch: which groups to launch, which to admit, and where every episode ended.

A pure state machine: it owns no task and does no I/O.

Invariants (rules 3 and 11). Groups are launched in order of their number and admitted in that order, never in the
order in which they finish, so short episodes are not favoured: the step is over when the groups up to some number have
all settled and fill the batch, however many later ones have finished. A wave is launched only when the pending groups
could not fill the batch even if all came out informative, and is as large as makes another one unlikely. Clean groups
and incomplete ones have a bound each, retired ones count for neither, and a batch that a bound cuts short names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from protocol.config import Rollout
from protocol.records import Batch, GroupRecord, Ledger, Trajectory
from rollout_engine.group import GroupResult
from rollout_engine.journal import Attempt
from rollout_engine.waves import wave_size


class BatchState:
    """Progress of one step towards ``rollout.groups`` informative groups.

    ``chance``    of a group, by number, to come out informative.
    ``carried``   informative groups that earlier steps left over and this one may train on: admitted first.
    ``launched``  groups that an engine before this one has launched; they are pending.
    """

    def __init__(
        self,
        rollout: Rollout,
        chance: Callable[[int], float],
        carried: Sequence[GroupRecord] = (),
        launched: int = 0,
    ):
        self._rollout = rollout
        self._chance = chance
        self._carried = tuple(carried[: rollout.groups])
        self._launched = launched
        self._pending = dict.fromkeys(range(launched))
        self._settled: dict[int, GroupResult] = {}
        self._informative = self._prefix_informative = len(self._carried)
        self._incomplete = self._retired = 0
        self._prefix = 0
        """Number of the first group that is not settled."""
        self._expired = False
        self.waves = int(launched > 0)
        """Times that groups were launched."""

    @property
    def launched(self) -> int:
        return self._launched

    @property
    def carried(self) -> int:
        return len(self._carried)

    @property
    def pending(self) -> list[int]:
        """In launch order."""
        return list(self._pending)

    @property
    def informative(self) -> int:
        """Groups in hand that may be trained on, those carried over included."""
        return self._informative

    @property
    def incomplete(self) -> int:
        return self._incomplete

    @property
    def oldest_version(self) -> int:
        """Oldest policy version of any sample in a settled group that isn't retired; -1 before there is one."""
        results = [result for result in self._settled.values() if not result.retired]
        samples = [sample for result in results for sample in result.samples if sample is not None]
        return min((sample.versions[0] for sample in samples), default=-1)

    def launch(self) -> list[int]:
        """Numbers of the groups to launch now, one wave; they count as pending from here on."""
        needed = self._rollout.groups - self._informative
        if self._expired or needed <= len(self._pending):
            return []
        first = self._launched
        size = wave_size(
            needed,
            [self._chance(number) for number in self._pending],
            lambda i: self._chance(first + i),
            self._rollout.wave_confidence,
            self._room(),
        )
        self._launched += size
        self.waves += size > 0
        wave = range(first, self._launched)
        self._pending |= dict.fromkeys(wave)
        return list(wave)

    def settle(self, result: GroupResult) -> None:
        if result.group not in self._pending:
            raise ValueError(f"group {result.group} was not pending")
        del self._pending[result.group]
        self._settled[result.group] = result
        self._informative += result.informative
        self._retired += result.retired
        self._incomplete += not result.whole and not result.retired
        while (settled := self._settled.get(self._prefix)) is not None:
            self._prefix += 1
            self._prefix_informative += settled.informative

    def expire(self) -> None:
        """The step's time is up: nothing more is launched."""
        self._expired = True

    @property
    def done(self) -> bool:
        """Nothing that may still happen changes the batch."""
        if self._prefix_informative >= self._rollout.groups:
            return True
        return not self._pending and (self._expired or not self._room())

    @property
    def full(self) -> bool:
        return self._informative >= self._rollout.groups

    def close(
        self,
        run: str,
        step: int,
        seconds: float,
        ledger: Callable[[Mapping[Attempt, str], int], Ledger],
        pool: Mapping[str, int],
    ) -> Batch:
        """The manifest of the finished step, once every launched group has settled.

        ``ledger``  of the step's attempts, from the buckets of those that left a trajectory and the number of
                    episodes carried over.

        Raises ``ValueError`` when a group is pending.
        """
        if self._pending or not self.done:
            raise ValueError(f"step {step} is not done: {len(self._pending)} groups pending")
        records = [msgspec.structs.replace(record, bucket="trained") for record in self._carried]
        buckets: dict[Attempt, str] = {}
        trained = len(records)
        for number in range(self._launched):
            result = self._settled[number]
            complete = [sample for sample in result.samples if sample is not None]
            clean = result.whole and not result.retired
            if result.informative and trained < self._rollout.groups:
                bucket, trained = "trained", trained + 1
            elif clean and not result.informative:
                bucket = "zero_variance"
            else:
                bucket = "surplus"
            buckets.update({(s.id.group, s.id.sample, s.id.attempt): bucket for s in complete})
            buckets.update({(s.id.group, s.id.sample, s.id.attempt): "surplus" for s in result.beyond})
            if clean:
                ids, rewards = tuple(s.id for s in complete), tuple(s.reward for s in complete)
                versions = tuple(sorted({version for sample in complete for version in sample.versions}))
                tokens, sampled = _counts(complete)
                records.append(GroupRecord(number, result.task, ids, rewards, bucket, versions, tokens, sampled))
        size = self._rollout.group_size
        return Batch(
            run=run,
            step=step,
            policy_version=min((record.versions[0] for record in records), default=step),
            group_size=size,
            groups=tuple(records),
            ledger=ledger(buckets, len(self._carried) * size),
            outcome="full" if self.full else "short",
            seconds=round(seconds, 3),
            bound=self._bound(),
            waves=self.waves,
            pool=dict(pool),
        )

    def _room(self) -> int:
        """Groups that the bounds still allow to launch."""
        if self._incomplete > self._rollout.max_incomplete:
            return 0
        return max(0, self._rollout.max_groups - (self._launched - self._incomplete - self._retired))

    def _bound(self) -> str:
        if self.full:
            return ""
        if self._expired:
            return "batch"
        return "max_incomplete" if self._incomplete > self._rollout.max_incomplete else "max_groups"


def _counts(samples: Sequence[Trajectory]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(tokens, sampled) of a group, as :class:`GroupRecord` has them; empty where a sample was logged without."""
    tokens = tuple(sample.learnt_tokens for sample in samples)
    return (tokens, tuple(sample.sampled_tokens for sample in samples)) if all(tokens) else ((), ())
