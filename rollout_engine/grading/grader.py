"""Grade a terminal database against the one the oracle leaves.

Invariant: the verdict depends on the snapshot alone, never on the path or on what was said. Reward 1.0
when every graded column agrees, else 0.0.
"""

from __future__ import annotations

from functools import lru_cache

from protocol.records import Verdict
from rollout_engine.environments.backend import replay
from rollout_engine.environments.catalogue import domain
from rollout_engine.environments.schema import Snapshot
from rollout_engine.environments.task import Task
from rollout_engine.errors import GraderError
from rollout_engine.grading.diff import compare, explain


@lru_cache(maxsize=8192)
def expected_snapshot(task: Task) -> Snapshot:
    """The database that the task's oracle leaves, on a fresh backend."""
    return replay(domain(task.domain), task, task.oracle)[1]


def grade(task: Task, snapshot: Snapshot) -> Verdict:
    """Reward, reasons and difference. Raises :class:`GraderError` when no verdict can be given (rule 2)."""
    try:
        expected = expected_snapshot(task)
    except Exception as error:
        raise GraderError(f"task {task.id}: no expected database: {error}") from error
    difference = compare(domain(task.domain).schema.tables, expected, snapshot)
    return Verdict(reward=0.0 if difference else 1.0, reasons=explain(difference), diff=difference)
