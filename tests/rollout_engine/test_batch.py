"""Rules 3 and 11: launch order, no length bias, bounds, and a ledger that sums."""

import random
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.records import Trajectory, TrajectoryId, Verdict
from rollout_engine.batch import BatchState
from rollout_engine.group import GroupResult


def sample(group, index, reward):
    id = TrajectoryId("r", 3, group, index)
    return Trajectory(id, "t", "travel", "f", 3, (), Verdict(reward), "done")


def result(group, rewards, errors=None):
    samples = [None if r is None else sample(group, i, r) for i, r in enumerate(rewards)]
    errors = Counter(errors or {})
    return GroupResult(group, f"task{group}", samples, sum(s is not None for s in samples) + errors.total(), errors)


MIXED, SOLVED, FAILED = [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]


def test_launches_exactly_what_could_be_needed_and_replaces_zero_variance_groups():
    state = BatchState(groups=3, max_groups=10)
    assert state.launch() == [0, 1, 2]
    assert state.launch() == []
    state.settle(result(1, SOLVED))
    assert state.launch() == [3]
    for group in (0, 2, 3):
        state.settle(result(group, MIXED))
    assert state.done and state.full
    batch = state.close("r", 3, 2, 1.5)
    assert [(g.group, g.bucket) for g in batch.groups] == [
        (0, "trained"),
        (1, "zero_variance"),
        (2, "trained"),
        (3, "trained"),
    ]
    assert batch.outcome == "full" and batch.policy_version == 3
    assert batch.ledger.trained == 6 and batch.ledger.zero_variance == 2 and batch.ledger.started == 8


def test_the_manifest_says_which_versions_sampled_each_group():
    state = BatchState(groups=2, max_groups=2)
    state.launch()
    for group, versions in enumerate([((3, ()), (3, ())), ((2, (3,)), (3, ()))]):
        settled = result(group, MIXED)
        for index, (oldest, newer) in enumerate(versions):
            settled.samples[index] = msgspec.structs.replace(
                settled.samples[index], policy_version=oldest, newer_versions=newer
            )
        state.settle(settled)
    batch = state.close("r", 3, 2, 0)
    assert [group.versions for group in batch.groups] == [(3,), (2, 3)] and batch.policy_version == 2


def test_stops_at_the_bound_with_a_short_batch():
    state = BatchState(groups=2, max_groups=3)
    state.launch()
    state.settle(result(0, FAILED))
    state.settle(result(1, FAILED))
    assert state.launch() == [2]
    state.settle(result(2, MIXED))
    assert state.done and not state.full
    assert state.close("r", 3, 2, 0).outcome == "short"


def test_a_group_that_ran_out_of_retries_is_replaced_and_its_samples_are_surplus():
    state = BatchState(groups=1, max_groups=3)
    state.launch()
    state.settle(result(0, [1.0, None], {"actor": 4}))
    assert state.launch() == [1]
    state.settle(result(1, MIXED, {"backend": 1}))
    batch = state.close("r", 3, 2, 0)
    assert [g.group for g in batch.groups] == [1]
    assert batch.ledger.surplus == 1 and batch.ledger.system_error == {"actor": 4, "backend": 1}
    assert batch.ledger.started == 1 + 4 + 2 + 1


def test_a_group_settles_once_and_an_unfinished_step_has_no_manifest():
    state = BatchState(groups=2, max_groups=2)
    state.launch()
    state.settle(result(0, MIXED))
    with pytest.raises(ValueError, match="group 0 was not pending"):
        state.settle(result(0, MIXED))
    with pytest.raises(ValueError, match="1 groups pending"):
        state.close("r", 3, 2, 0)


@given(st.integers(0, 2**32), st.floats(0, 1), st.integers(1, 6), st.integers(0, 20))
def test_any_finish_order_fills_in_launch_order_and_the_ledger_sums(seed, zero_share, groups, extra):
    rng = random.Random(seed)
    state, pending = BatchState(groups, groups + extra), []
    while not state.done:
        pending += state.launch()
        group = pending.pop(rng.randrange(len(pending)))
        rewards = rng.choice([SOLVED, FAILED]) if rng.random() < zero_share else MIXED
        state.settle(result(group, rewards, {"actor": rng.randrange(3)}))
        assert state.launched <= groups + extra
    batch = state.close("r", 3, 2, 0)
    trained = [g.group for g in batch.groups if g.bucket == "trained"]
    informative = [g.group for g in batch.groups if g.bucket in ("trained", "surplus")]
    assert trained == sorted(trained) == informative[:groups]
    assert (batch.outcome == "full") == (len(trained) == groups)
    assert batch.ledger.trained == 2 * len(trained)


def test_admission_does_not_favour_groups_that_finish_early():
    """A policy whose long episodes succeed more often: the trained lengths equal the launched ones."""
    rng = random.Random(0)
    trained, launched = [], []
    for _ in range(300):
        state, running, clock = BatchState(8, 24), [], 0.0
        length = {}
        while not state.done:
            for group in state.launch():
                length[group] = rng.choice([1, 10])
                running.append((clock + length[group], group))
            running.sort()
            clock, group = running.pop(0)
            state.settle(result(group, MIXED if rng.random() < 0.6 else SOLVED))
        batch = state.close("r", 3, 2, 0)
        trained += [length[g.group] for g in batch.groups if g.bucket == "trained"]
        launched += list(length.values())
    assert len(trained) == 2400
    assert abs(sum(trained) / len(trained) - sum(launched) / len(launched)) < 0.25
