"""One group: G graded samples of one task, whole or not at all (rule 11).

Invariant: a sample that meets a system error runs again, alone and at once but for its backoff, under its next attempt
number; its siblings neither wait for it nor run again. A sample out of retries leaves the group incomplete, and an
incomplete group is never trained on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

import trio

from protocol.config import Retries
from protocol.records import Trajectory, TrajectoryId
from rollout_engine.environments.task import Task
from rollout_engine.errors import EpisodeSystemError
from rollout_engine.gate import Gate
from rollout_engine.journal import Journal
from rollout_engine.retry import RetryBudget


@dataclass
class GroupResult:
    """What a launched group came to. ``samples[i]`` is None where sample i has no verdict (yet)."""

    group: int
    task: str
    samples: list[Trajectory | None]
    errors: Counter[str] = field(default_factory=Counter)
    """System errors by kind."""
    retired: bool = False
    """Begun under another configuration, and not gone on with; see :mod:`rollout_engine.resumption`."""
    beyond: tuple[Trajectory, ...] = ()
    """Samples that the log holds beyond the group's size, which was larger when they ran."""

    @classmethod
    def of(
        cls, group: int, task: str, size: int, logged: Mapping[int, Trajectory], retired: bool = False
    ) -> GroupResult:
        """A group before it runs. ``logged``: sample number -> trajectory, of those that the log holds."""
        beyond = tuple(trajectory for sample, trajectory in sorted(logged.items()) if sample >= size)
        return cls(group, task, [logged.get(sample) for sample in range(size)], retired=retired, beyond=beyond)

    @property
    def whole(self) -> bool:
        return all(sample is not None for sample in self.samples)

    @property
    def informative(self) -> bool:
        """Whole, not retired, and its rewards are not all exactly equal."""
        return self.whole and not self.retired and len({sample.reward for sample in self.samples}) > 1


@dataclass(frozen=True)
class GroupPlan:
    """How to run the samples of a step's groups."""

    retries: Retries
    limiter: AbstractAsyncContextManager[None]
    gate: Gate
    journal: Journal
    episode: Callable[[Task, TrajectoryId], Awaitable[Trajectory]]
    """Runs, publishes and returns one sample, or raises an EpisodeSystemError."""
    failed: Callable[[TrajectoryId, EpisodeSystemError, float | None], None]
    """Told of a system error, with the seconds before that sample runs again (None: it is out of retries)."""


async def run_group(plan: GroupPlan, result: GroupResult, task: Task) -> None:
    """Run the samples that ``result`` lacks. Cancelled, it keeps those that are done."""
    async with trio.open_nursery() as nursery:
        for sample, done in enumerate(result.samples):
            if done is None:
                nursery.start_soon(_run_sample, plan, task, result, sample)


async def _run_sample(plan: GroupPlan, task: Task, result: GroupResult, sample: int) -> None:
    budget, first = RetryBudget(plan.retries), True
    wait: float | None = 0.0
    while wait is not None:
        await trio.sleep(wait)
        async with plan.limiter:
            try:
                async with plan.gate.admit(task.id, first) as admission:
                    id = await plan.journal.start(result.group, sample)
                    result.samples[sample] = await plan.episode(task, id)
                return
            except EpisodeSystemError as error:
                wait = budget.after(error, admission.excused)
                plan.journal.fail(id, error.kind)
                plan.failed(id, error, wait)
                result.errors[error.kind] += 1
        first = False
