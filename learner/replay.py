"""Batches from exported logs: training without an engine, an actor or a bus.

Invariant (rule 12): the same batches in the same order through the same code as a live run, so the same weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from learner.source import BatchError, Delivery
from protocol.log import read
from protocol.records import PolicyVersion


class LoggedBatches:
    """A :class:`~learner.source.BatchSource` over log files. Nothing is announced: no one listens."""

    def __init__(self, paths: Sequence[str | Path]):
        self.log = read(paths)

    def next(self, step: int) -> Delivery | None:
        batch = self.log.batches.get(step)
        if batch is None:
            if any(later > step for later in self.log.batches):
                raise BatchError(f"the log has no batch of step {step}, but has later ones: give all of its files")
            return None
        wanted = [id for group in batch.groups if group.bucket == "trained" for id in group.trajectories]
        found = [self.log.trajectories[id] for id in wanted if id in self.log.trajectories]
        return Delivery(batch, found, lambda: None)

    def publish(self, version: PolicyVersion) -> None:
        del version
