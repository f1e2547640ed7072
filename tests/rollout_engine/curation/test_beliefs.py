"""Posteriors that stay current, and follow from the log alone."""

import pytest

from protocol.records import Batch, GroupRecord, Ledger, TrajectoryId
from rollout_engine.curation.beliefs import TaskBeliefs
from rollout_engine.curation.posterior import Posterior


def batch(step, *groups):
    """Groups as (task, rewards) or (task, rewards, step that ran it)."""
    records = []
    for number, (task, rewards, *ran) in enumerate(groups):
        ids = tuple(TrajectoryId("r", ran[0] if ran else step, number, i) for i in range(len(rewards)))
        records.append(GroupRecord(number, task, ids, tuple(rewards), "trained"))
    return Batch("r", step, step, 4, tuple(records), Ledger(0))


def test_every_finished_group_updates_its_task():
    beliefs = TaskBeliefs({"a": (8, 2)}, forgetting=0.0)
    beliefs.observe(batch(0, ("a", [1.0, 1.0, 0.0, 1.0]), ("b", [0.0, 0.5, 0.0, 0.0])))
    beliefs.observe(batch(1, ("a", [1.0, 1.0, 1.0, 1.0])))
    assert beliefs.posterior("a", 2) == Posterior(2 + 3 + 4 + 0.5, 6 + 1 + 0.5)
    assert beliefs.posterior("b", 2) == Posterior(0.5, 4.5), "a partial reward is no pass"
    assert beliefs.posterior("c", 2) == Posterior(0.5, 0.5)


def test_old_evidence_fades_with_every_step():
    beliefs = TaskBeliefs({"a": (8, 8)}, forgetting=0.5)
    assert beliefs.posterior("a", 0) == Posterior(8.5, 0.5)
    beliefs.observe(batch(1, ("a", [0.0, 0.0, 0.0, 0.0])))
    # 8 probe attempts weigh 4 after a step and 1 after three, the group's 4 weigh 1 after two.
    assert beliefs.posterior("a", 3) == Posterior(1.5, 1.5)
    assert beliefs.posterior("a", 60).alpha == pytest.approx(0.5)


def test_a_group_carried_over_is_counted_in_the_step_that_ran_it():
    beliefs = TaskBeliefs({}, forgetting=0.0)
    beliefs.observe(batch(0, ("a", [1.0, 0.0, 0.0, 0.0])))
    beliefs.observe(batch(1, ("a", [1.0, 0.0, 0.0, 0.0], 0)))
    assert beliefs.posterior("a", 2) == Posterior(1.5, 3.5)


def test_the_histogram_is_of_the_whole_pool_hardest_first():
    beliefs = TaskBeliefs({"a": (8, 8), "b": (8, 0), "c": (8, 4)}, forgetting=0.0)
    histogram = beliefs.histogram(["a", "b", "c", "d"], 0)
    assert list(histogram) == [
        "rarely_solved",
        "difficult",
        "intermediate",
        "frequently_solved",
        "nearly_always_solved",
    ]
    assert sum(histogram.values()) == 4 and histogram["nearly_always_solved"] == histogram["rarely_solved"] == 1


def test_predictions_are_held_against_what_came_out_before_the_posterior_learns_of_it():
    """A task that failed 8 times is given a chance of 0.29 to come out mixed; of such tasks none ever did."""
    probed = {f"t{i}": (8, 0) for i in range(20)} | {"other": (8, 0)}
    beliefs = TaskBeliefs(probed, forgetting=0.0)
    before = beliefs.mixed("other", 0, 8)
    assert before == beliefs.posterior("other", 0).mixed(8) == pytest.approx(0.2873, abs=1e-4)
    beliefs.observe(batch(0, *((f"t{i}", [0.0] * 8) for i in range(20))))
    assert beliefs.mixed("other", 1, 8) == pytest.approx(before / (20 * before + 1))
    assert beliefs.posterior("other", 1) == Posterior(0.5, 8.5)
