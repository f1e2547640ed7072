"""Whose doing it is when a check raises (rule 1).

Invariant: a check that raises on the state that the agent left, and not on the state that the oracle leaves, is
scored 0 and says so; a check that raises on both is broken, and gives no verdict.
"""

from __future__ import annotations

from protocol.records import Verdict
from rollout_engine.environments.schema import Snapshot
from rollout_engine.environments.task import Task
from rollout_engine.errors import GraderError
from rollout_engine.grading.grader import expected_snapshot, grade


def verdict(task: Task, snapshot: Snapshot) -> Verdict:
    """As :func:`~rollout_engine.grading.grader.grade`, with a raising check told apart.

    Raises :class:`GraderError` when no verdict can be given (rule 2).
    """
    try:
        return grade(task, snapshot)
    except GraderError:
        raise
    except Exception as error:
        try:
            grade(task, expected_snapshot(task))
        except Exception as broken:
            raise GraderError(f"grading {task.id} fails on the oracle's own database: {broken!r}") from broken
        return Verdict(0.0, (f"the check raised on the database that the agent left: {error!r}",))
