"""Outages: when they open, who probes, what is excused, how they close."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.config import Outage
from rollout_engine.circuit import Circuits

SETTINGS = Outage(errors=4, among=6, probe=5.0, max_probe=30.0, longest=100.0)


def fail(circuits, kind="user", task="a", now=0.0, first=True, **options):
    number = circuits.admit(now)
    return circuits.failed(number, kind, task, now, first, **options)


def opened(now=0.0, kind="user", **options):
    circuits = Circuits(SETTINGS)
    for task in "abca":
        excused = fail(circuits, kind, task, now, **options)
    assert excused and circuits.paused
    return circuits


def test_enough_errors_of_one_kind_over_several_tasks_open_an_outage():
    circuits = Circuits(SETTINGS)
    assert [fail(circuits, task=task) for task in "abc"] == [False] * 3
    fail(circuits, kind="actor", task="d")
    assert not circuits.open
    assert fail(circuits, task="a"), "the error that opens it is its own already"
    [status] = circuits.status(2.0)
    assert (status.kind, status.paused, status.seconds, status.errors, status.next_probe) == ("user", True, 2.0, 4, 3.0)


def test_errors_among_successes_are_no_outage():
    circuits = Circuits(SETTINGS)
    for task in "abcdefghij" * 5:
        assert not fail(circuits, task=task)
        circuits.succeeded(circuits.admit(0.0), task, 0.0, True)
    assert not circuits.open


def test_a_few_broken_tasks_are_no_outage_however_often_they_run_again():
    circuits = Circuits(SETTINGS)
    for task in "ab" * 8:
        assert not fail(circuits, "grader", task)
    for sample in range(40):
        circuits.succeeded(circuits.admit(0.0), f"t{sample}", 0.0, True)
    for task in "abcdefgh" * 3:
        assert not fail(circuits, "grader", task, first=False)
    assert not circuits.open


@pytest.mark.parametrize("tasks", [1, 2])
def test_of_fewer_than_three_tasks_all_must_fail(tasks):
    circuits = Circuits(SETTINGS, tasks)
    if tasks == 2:
        assert [fail(circuits, task="a") for _ in range(3)] == [False] * 3
        assert fail(circuits, task="b")
    else:
        assert [fail(circuits, task="a") for _ in range(4)] == [False] * 3 + [True]
    assert circuits.paused


def test_large_groups_that_fail_one_after_the_other_are_an_outage():
    circuits = Circuits(SETTINGS)
    assert [fail(circuits, task=task) for task in "a" * 16 + "b" * 16 + "c"] == [False] * 32 + [True]


def test_one_probe_at_a_time_with_growing_pauses():
    circuits = opened()
    assert circuits.admit(4.9) is None and circuits.wake() == 5.0
    times, now = [], 0.0
    for _ in range(5):
        now = circuits.wake()
        times.append(now)
        probe = circuits.admit(now)
        assert probe is not None and circuits.admit(now) is None, "one at a time"
        assert circuits.failed(probe, "user", "a", now, False)
    assert times == [5.0, 15.0, 35.0, 65.0, 95.0]
    assert circuits.overdue(99.9) is None and circuits.overdue(100.0) == "user"


def test_a_service_that_says_when_to_ask_again_is_not_probed_before():
    circuits = opened(retry_after=40.0)
    assert circuits.wake() == 40.0
    probe = circuits.admit(40.0)
    circuits.failed(probe, "user", "a", 41.0, False, retry_after=17.0)
    assert circuits.wake() == 58.0


def test_after_a_probe_succeeds_launches_double_until_it_closes():
    circuits = opened()
    circuits.succeeded(circuits.admit(5.0), "a", 6.0, False)
    assert not circuits.paused and circuits.open and circuits.paused_seconds(100.0) == 6.0
    two = [circuits.admit(6.0) for _ in range(3)]
    assert two[2] is None
    for number in two[:2]:
        circuits.succeeded(number, "a", 7.0, False)
    eight = [circuits.admit(7.0) for _ in range(9)]
    assert eight[8] is None and None not in eight[:8]
    circuits.succeeded(eight[0], "a", 8.0, False)
    assert not circuits.open
    assert None not in [circuits.admit(8.0) for _ in range(1000)]


def test_a_relapse_pauses_again_and_costs_one_doubling_however_many_fail_with_it():
    circuits = opened()
    circuits.succeeded(circuits.admit(5.0), "a", 5.0, False)
    circuits.succeeded(circuits.admit(5.0), "a", 5.0, False)
    running = [circuits.admit(5.0) for _ in range(4)]
    for number in running:
        assert circuits.failed(number, "user", "a", 6.0, True)
    assert circuits.paused and circuits.wake() == 16.0
    circuits.succeeded(circuits.admit(16.0), "a", 20.0, False)
    assert circuits.paused_seconds(99.0) == 5.0 + 14.0


def test_a_relapse_has_the_whole_bound_however_long_ago_the_last_success():
    circuits = opened()
    circuits.succeeded(circuits.admit(5.0), "a", 5.0, False)
    circuits.failed(circuits.admit(1000.0), "user", "a", 1000.0, True)
    assert circuits.paused and circuits.overdue(1099.0) is None and circuits.overdue(1100.0) == "user"


def test_time_between_steps_is_no_part_of_an_outages_bound():
    circuits = opened()
    circuits.ask_again(5000.0)
    assert circuits.overdue(5099.0) is None and circuits.overdue(5100.0) == "user"


def test_what_was_running_when_it_broke_is_excused_and_no_evidence():
    circuits = Circuits(SETTINGS)
    early = [circuits.admit(0.0) for _ in range(3)]
    for task in "abca":
        fail(circuits, task=task)
    assert circuits.failed(early[0], "user", "z", 1.0, True)
    assert circuits.wake() == 5.0, "it tells nothing about now"
    circuits.succeeded(early[1], "z", 2.0, True)
    assert circuits.paused
    assert not circuits.failed(early[2], "actor", "z", 3.0, True), "another kind's error is the sample's own"


def test_two_services_may_be_down_at_once_and_time_is_counted_once():
    circuits = opened(0.0, "user")
    early = Circuits(SETTINGS)
    running = [early.admit(0.0) for _ in range(8)]
    for number, task in zip(running[:4], "abca", strict=True):
        early.failed(number, "user", task, 0.0, True)
    for number, task in zip(running[4:], "abca", strict=True):
        early.failed(number, "actor", task, 3.0, True)
    assert [status.kind for status in early.status(3.0)] == ["user", "actor"]
    assert early.admit(7.9) is None, "the later one holds it back"
    early.succeeded(early.admit(8.0), "a", 9.0, False)
    assert not early.paused and early.paused_seconds(50.0) == 9.0
    assert circuits.paused_seconds(50.0) == 50.0


def test_a_probe_that_fails_for_another_reason_or_is_cancelled_lets_the_next_one_go():
    circuits = opened()
    assert not circuits.failed(circuits.admit(5.0), "actor", "a", 6.0, True)
    assert circuits.wake() == 11.0
    circuits.abandoned(circuits.admit(11.0))
    assert circuits.admit(11.0) is not None


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_whatever_happens_somebody_may_go_sooner_or_later(seed):
    """No sequence of events leaves the gate shut for good: at most one probe's end, or a wait, away."""
    rng, now = random.Random(seed), 0.0
    circuits, running = Circuits(SETTINGS), []
    for _ in range(300):
        now += rng.choice([0.0, 0.5, 4.0])
        number = circuits.admit(now)
        if number is not None:
            running.append(number)
        if running and (number is None or rng.random() < 0.5):
            ended = running.pop(rng.randrange(len(running)))
            kind = rng.choice(["", "", "user", "user", "actor", "cancelled"])
            if kind == "cancelled":
                circuits.abandoned(ended)
            elif kind:
                circuits.failed(ended, kind, rng.choice("abcd"), now, rng.random() < 0.5)
            else:
                circuits.succeeded(ended, rng.choice("abcd"), now, rng.random() < 0.5)
    for number in running:
        circuits.abandoned(number)
    wake = circuits.wake()
    assert circuits.admit(now if wake == math.inf else max(now, now + SETTINGS.max_probe + 1)) is not None
    assert 0.0 <= circuits.paused_seconds(now) <= now


@pytest.mark.parametrize("seconds", [0.0, 17.0])
def test_without_an_outage_nothing_is_paused(seconds):
    circuits = Circuits(SETTINGS)
    assert circuits.wake() == math.inf and circuits.overdue(1e9) is None
    assert circuits.paused_seconds(seconds) == 0.0 and circuits.status(seconds) == []
