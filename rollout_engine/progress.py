"""What a terminal wants to know of a step while it runs.

Invariant: told, never asked: whoever listens can't slow a step down or change it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from protocol.records import Batch, Trajectory, TrajectoryId
from rollout_engine.batch import BatchState
from rollout_engine.circuit import OutageStatus
from rollout_engine.errors import EpisodeSystemError
from rollout_engine.group import GroupResult


class StepProgress(Protocol):
    """Implemented by :class:`rollout_engine.cli.progress.StepDisplay`."""

    def step(self, step: int) -> None:
        """A step begins: the policy version that it needs is waited for."""
        ...

    def pool(self, histogram: Mapping[str, int]) -> None:
        """Tasks by difficulty band, as of this step."""
        ...

    def wave(self, groups: int, state: BatchState) -> None:
        """So many groups were launched."""
        ...

    def episode(self, trajectory: Trajectory) -> None:
        """A sample is on the log."""
        ...

    def failed(self, id: TrajectoryId, error: EpisodeSystemError, again: float | None) -> None:
        """An attempt met a system error; its sample runs again in ``again`` seconds, or never."""
        ...

    def outage(self, outages: Sequence[OutageStatus]) -> None:
        """Outages have opened, paused, recovered or closed; these are open."""
        ...

    def group(self, result: GroupResult, state: BatchState) -> None:
        """A group has settled."""
        ...

    def batch(self, batch: Batch) -> None:
        """The step's manifest is on the log."""
        ...
