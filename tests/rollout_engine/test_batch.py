"""Rules 3 and 11: launch order, no length bias, waves, bounds, and a ledger that sums."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.config import Rollout
from protocol.records import Batch, GroupRecord, Ledger, Trajectory, TrajectoryId, Verdict
from rollout_engine.batch import BatchState
from rollout_engine.group import GroupResult

MIXED, SOLVED, FAILED = [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]


def sample(group, index, reward):
    id = TrajectoryId("r", 3, group, index)
    return Trajectory(id, "t", "travel", "f", 3, (), Verdict(reward), "done")


def result(group, rewards, errors=None):
    samples = [None if r is None else sample(group, i, r) for i, r in enumerate(rewards)]
    return GroupResult(group, f"task{group}", samples, Counter(errors or {}))


def state_of(groups, max_groups, confidence=0.0, chance=0.5, carried=(), launched=0, **rollout):
    settings = Rollout(
        groups=groups, max_groups=max_groups, group_size=2, wave_confidence=confidence, max_incomplete=2, **rollout
    )
    return BatchState(settings, lambda group: chance, carried, launched)


def close(state) -> Batch:
    def ledger(buckets, carried):
        counts = Counter(buckets.values())
        counts["trained"] += carried
        return Ledger(len(buckets), carried=carried, **counts)

    batch = state.close("r", 3, 1.5, ledger, {})
    batch.ledger.check()
    return batch


def test_launches_exactly_what_could_be_needed_and_replaces_zero_variance_groups():
    state = state_of(3, 10)
    assert state.launch() == [0, 1, 2]
    assert state.launch() == []
    state.settle(result(1, SOLVED))
    assert state.launch() == [3]
    for group in (0, 2, 3):
        state.settle(result(group, MIXED))
    assert state.done and state.full
    batch = close(state)
    assert [(g.group, g.bucket) for g in batch.groups] == [
        (0, "trained"),
        (1, "zero_variance"),
        (2, "trained"),
        (3, "trained"),
    ]
    assert batch.outcome == "full" and batch.bound == "" and batch.policy_version == 3 and batch.waves == 2
    assert batch.seconds == 1.5 and batch.ledger == Ledger(8, trained=6, zero_variance=2)


def test_a_wave_is_as_large_as_makes_a_second_one_unlikely():
    state = state_of(2, 50, confidence=0.9, chance=0.5)
    assert len(state.launch()) == 7  # of 6, too few come out mixed with chance 7/64; of 7, with 8/128
    for group in (0, 1, 2, 3, 4):
        state.settle(result(group, SOLVED))
    assert state.launch() == [], "the two pending ones may still fill it"
    state.settle(result(5, SOLVED))
    assert len(state.launch()) == 6, "and now they can't: the second wave is sized in the same way"
    assert state.waves == 2


def test_the_bound_is_on_clean_groups_and_incomplete_ones_have_their_own():
    state = state_of(2, 3)
    assert state.launch() == [0, 1]
    state.settle(result(0, [1.0, None]))
    assert state.launch() == [2], "an incomplete group burns no clean one"
    state.settle(result(1, FAILED))
    assert state.launch() == [3]
    state.settle(result(2, [None, None]))
    assert state.launch() == [4]
    state.settle(result(3, FAILED))
    state.settle(result(4, MIXED))
    assert state.launch() == [] and state.done and not state.full
    batch = close(state)
    assert (batch.outcome, batch.bound) == ("short", "max_groups")
    assert [g.group for g in batch.groups] == [1, 3, 4]
    assert batch.ledger == Ledger(7, trained=2, zero_variance=4, surplus=1)


def test_incomplete_groups_beyond_their_bound_end_the_batch():
    state = state_of(1, 100)
    for number in range(3):
        assert state.launch() == [number]
        assert not state.done
        state.settle(result(number, [1.0, None]))
    assert state.launch() == [] and state.done
    assert close(state).bound == "max_incomplete"


def test_an_expired_batch_is_short_and_names_the_time_bound():
    state = state_of(3, 100)
    state.launch()
    state.settle(result(1, MIXED))
    state.expire()
    assert not state.done and state.launch() == []
    state.settle(result(0, [1.0, None]))
    state.settle(result(2, [None, None]))
    batch = close(state)
    assert (batch.outcome, batch.bound, batch.ledger.trained, batch.ledger.surplus) == ("short", "batch", 2, 1)


def test_the_batch_is_done_once_the_first_groups_fill_it_however_many_run_on():
    state = state_of(2, 50, confidence=0.9, chance=0.5)
    state.launch()
    for group in (1, 3, 5):
        state.settle(result(group, MIXED))
    assert state.full and not state.done, "group 0 was launched before them, and may be informative"
    state.settle(result(0, SOLVED))
    assert not state.done, "so may group 2"
    state.settle(result(2, MIXED))
    assert state.done and state.pending == [4, 6]
    for group in (4, 6):
        state.settle(result(group, [None, 1.0]))
    batch = close(state)
    assert [g.group for g in batch.groups if g.bucket == "trained"] == [1, 2]
    assert [g.group for g in batch.groups if g.bucket == "surplus"] == [3, 5]
    assert batch.ledger == Ledger(12, trained=4, zero_variance=2, surplus=6)


def test_groups_carried_over_are_admitted_first_and_counted_apart():
    ids = tuple(TrajectoryId("r", 2, 7, i) for i in range(2))
    spare = GroupRecord(7, "t", ids, (1.0, 0.0), "surplus", (2,))
    state = state_of(2, 10, carried=[spare])
    assert state.launch() == [0]
    state.settle(result(0, MIXED))
    batch = close(state)
    assert [(g.group, g.trajectories[0].step, g.bucket) for g in batch.groups] == [(7, 2, "trained"), (0, 3, "trained")]
    assert batch.ledger == Ledger(2, trained=4, carried=2) and batch.policy_version == 2

    full = state_of(2, 10, carried=[spare] * 3)
    assert full.done and full.launch() == [] and full.carried == 2


def test_groups_that_were_launched_before_a_restart_keep_their_place():
    state = state_of(1, 10, launched=3)
    assert state.pending == [0, 1, 2] and state.launch() == [] and not state.done
    state.settle(result(2, MIXED))
    state.settle(result(0, SOLVED))
    assert not state.done
    state.settle(result(1, MIXED))
    assert state.done
    assert [g.bucket for g in close(state).groups] == ["zero_variance", "trained", "surplus"]


def test_a_group_settles_once_and_an_unfinished_step_has_no_manifest():
    state = state_of(2, 2)
    state.launch()
    state.settle(result(0, MIXED))
    with pytest.raises(ValueError, match="group 0 was not pending"):
        state.settle(result(0, MIXED))
    with pytest.raises(ValueError, match="1 groups pending"):
        close(state)


@settings(deadline=None)
@given(st.integers(0, 2**32), st.floats(0, 1), st.floats(0, 0.95), st.integers(1, 6), st.integers(0, 20))
def test_any_finish_order_fills_in_launch_order_and_the_ledger_sums(seed, zero_share, confidence, groups, extra):
    rng = random.Random(seed)
    state, pending = state_of(groups, groups + extra, confidence, chance=1 - zero_share), []
    while not state.done:
        pending += state.launch()
        group = pending.pop(rng.randrange(len(pending)))
        rewards = rng.choice([SOLVED, FAILED]) if rng.random() < zero_share else MIXED
        state.settle(result(group, [None, 1.0] if rng.random() < 0.05 else rewards))
        assert state.launched - state.incomplete <= groups + extra
    for group in pending:
        state.settle(result(group, MIXED))
    batch = close(state)
    trained = [g.group for g in batch.groups if g.bucket == "trained"]
    informative = [g.group for g in batch.groups if g.bucket in ("trained", "surplus")]
    assert trained == sorted(trained) == informative[:groups]
    assert (batch.outcome == "full") == (len(trained) == groups)
    assert batch.ledger.trained == 2 * len(trained)
