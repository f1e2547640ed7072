import dataclasses

import pytest

from rollout_engine.environments.backend import replay
from rollout_engine.environments.catalogue import DOMAINS, domain
from rollout_engine.environments.registry import generate
from rollout_engine.environments.task import calls_of
from rollout_engine.errors import GraderError
from rollout_engine.grading import expected_snapshot, grade

TASKS = generate(DOMAINS, "heldout", 40)


def graded(task, calls):
    return grade(task, replay(domain(task.domain), task, calls)[1])


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
def test_the_oracle_is_worth_one_and_everything_else_nothing(task):
    right = graded(task, task.oracle)
    assert (right.reward, right.reasons, right.diff) == (1.0, (), ())
    for script in [(), *(slip.script for slip in task.slips)]:
        wrong = graded(task, calls_of(script))
        assert wrong.reward == 0.0
        assert len(wrong.reasons) == len(wrong.diff) >= 1


def test_touching_another_record_fails():
    task = next(task for task in TASKS if task.domain == "travel")
    theirs = [row["ticket_id"] for row in task.rows["tickets"]][1]
    backend_calls = (
        *task.oracle,
        task.oracle[-1].__class__("close_ticket", {"ticket_id": theirs, "resolution": "denied"}),
    )
    verdict = graded(task, backend_calls)
    assert verdict.reward == 0.0
    assert verdict.reasons == (
        f"tickets {theirs}: status is 'closed', expected 'open'; resolution is 'denied', expected 'none'",
    )


def test_free_columns_do_not_count():
    task = TASKS[0]
    _, snapshot = replay(domain(task.domain), task, task.oracle)
    for row in snapshot["tickets"].values():
        row["note"], row["updated_at"] = "a longer story", "tomorrow"
    assert grade(task, snapshot).reward == 1.0


def test_the_expected_database_is_computed_once():
    assert expected_snapshot(TASKS[0]) is expected_snapshot(TASKS[0])


def test_no_verdict_is_not_zero():
    lost = dataclasses.replace(TASKS[0], id="lost", domain="nowhere")
    with pytest.raises(GraderError, match="task lost: no expected database"):
        grade(lost, {})
