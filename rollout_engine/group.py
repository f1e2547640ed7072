"""One group: G graded samples of one task by one policy version, whole or not at all (rule 11).

Invariant: a sample that meets a system error runs again, alone, with its next attempt number; its
siblings neither wait for it nor run again. A sample out of retries leaves the group incomplete, and an
incomplete group is never trained on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

from protocol.records import Trajectory, TrajectoryId
from rollout_engine.environments.task import Task
from rollout_engine.errors import EpisodeSystemError


@dataclass
class GroupResult:
    """What a launched group came to. ``samples[i]`` is None where sample i ran out of retries."""

    group: int
    task: str
    samples: list[Trajectory | None]
    started: int = 0
    """Episodes started for this group, retries included; samples found on the log count as well."""
    errors: Counter[str] = field(default_factory=Counter)
    """System errors by kind."""

    @property
    def whole(self) -> bool:
        return all(sample is not None for sample in self.samples)

    @property
    def informative(self) -> bool:
        """Whole, and its rewards are not all exactly equal."""
        return self.whole and len({sample.reward for sample in self.samples}) > 1


@dataclass(frozen=True)
class GroupPlan:
    """How to run one group's samples."""

    run: str
    step: int
    group_size: int
    retries: int
    backoff: float
    """Seconds before the first retry of a sample; doubled for each further one."""
    limiter: trio.CapacityLimiter
    episode: Callable[[Task, TrajectoryId], Awaitable[Trajectory]]
    """Runs, publishes and returns one sample, or raises an EpisodeSystemError."""


async def run_group(plan: GroupPlan, group: int, task: Task, logged: dict[int, Trajectory]) -> GroupResult:
    """Run the samples of ``group`` that are not in ``logged`` (sample number -> trajectory)."""
    result = GroupResult(group, task.id, [logged.get(i) for i in range(plan.group_size)], started=len(logged))
    async with trio.open_nursery() as nursery:
        for sample in range(plan.group_size):
            if sample not in logged:
                nursery.start_soon(_run_sample, plan, task, result, sample)
    return result


async def _run_sample(plan: GroupPlan, task: Task, result: GroupResult, sample: int) -> None:
    for attempt in range(plan.retries + 1):
        id = TrajectoryId(plan.run, plan.step, result.group, sample, attempt)
        try:
            async with plan.limiter:
                result.started += 1
                result.samples[sample] = await plan.episode(task, id)
            return
        except EpisodeSystemError as error:
            result.errors[error.kind] += 1
        if attempt < plan.retries:
            await trio.sleep(plan.backoff * 2**attempt)
