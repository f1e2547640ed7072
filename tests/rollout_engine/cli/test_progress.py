"""The engine's terminal says what is going on, and shows what others wrote as it is."""

import io

import pytest
from rich.console import Console

from protocol import config as configuration
from protocol.config import Rollout
from protocol.records import Batch, GroupRecord, Ledger, Trajectory, TrajectoryId, Verdict
from rollout_engine.batch import BatchState
from rollout_engine.circuit import OutageStatus
from rollout_engine.cli.outages import describe
from rollout_engine.cli.progress import StepDisplay, bands, ledger_line
from rollout_engine.errors import UserError
from rollout_engine.group import GroupResult

ID = TrajectoryId("r", 4, 3, 1)


@pytest.fixture
def told():
    """A display of step 4, and a function that returns the lines printed since it was last asked."""
    output = io.StringIO()
    config = configuration.resolve({"run": "r", "rollout": {"groups": 2, "group_size": 2, "max_groups": 9}})
    with StepDisplay(config, Console(file=output, width=300)) as display:
        display.step(4)

        def lines():
            said, _ = output.getvalue().splitlines(), output.truncate(0)
            output.seek(0)
            return [line.rstrip() for line in said if line.strip()]

        yield display, lines


def graded(group, sample, reward):
    return Trajectory(TrajectoryId("r", 4, group, sample), "t", "d", "f", 4, (), Verdict(reward), "done")


def test_the_pool_is_shown_when_it_has_changed(told):
    display, lines = told
    histogram = {"rarely_solved": 0, "difficult": 12, "nearly_always_solved": 3}
    display.pool(histogram)
    display.pool(dict(histogram))
    assert lines() == ["step   4  pool: 12 difficult, 3 nearly always solved"]


def test_a_second_wave_is_told_and_the_first_is_not(told):
    display, lines = told
    state = BatchState(Rollout(groups=2, group_size=2, max_groups=9, wave_confidence=0.0), lambda group: 0.5)
    display.wave(len(state.launch()), state)
    assert lines() == []
    for group in (0, 1):
        result = GroupResult(group, "t", [graded(group, i, 1.0 - i * group) for i in range(2)])
        state.settle(result)
        display.group(result, state)
    display.wave(len(state.launch()), state)
    assert lines() == ["step   4  wave 2: 1 more groups, 1 of 2 informative so far"]


def test_errors_are_counted_and_a_sample_out_of_retries_is_told_as_it_is(told):
    display, lines = told
    display.failed(ID, UserError("down"), 0.5)
    assert lines() == []
    display.failed(ID, UserError("[red]boo[/]"), None)
    assert lines() == [
        "step   4  group 3 stays incomplete: sample 1 is out of retries, the last error user: [red]boo[/]"
    ]


def test_an_outage_is_told_when_it_opens_at_each_failed_probe_and_when_it_ends(told):
    display, lines = told
    display.outage([OutageStatus("user", True, 0.0, 8, 5.0, "no [route]")])
    display.outage([OutageStatus("user", True, 5.0, 8, 0.0, "no [route]")])
    display.outage([OutageStatus("user", True, 6.0, 9, 10.0, "refused")])
    display.outage([OutageStatus("user", False, 30.0, 9, 0.0, "refused")])
    display.outage([])
    assert lines() == [
        "step   4  outage of user for 0 s, 8 errors: launches pause, next probe in 5 s; the last error: no [route]",
        "step   4  outage of user for 6 s, 9 errors: launches pause, next probe in 10 s; the last error: refused",
        "step   4  outage of user for 30 s, 9 errors: a probe succeeded, launches resume step by step",
        "step   4  outage of user is over: all episodes resume",
    ]
    assert describe(OutageStatus("actor", True, 7.0, 9, 0.0)).endswith("launches pause, probing")


def test_a_finished_step_is_one_line_with_its_whole_ledger(told):
    display, lines = told
    for reward in (1.0, 0.0, 0.0, 0.0):
        display.episode(graded(0, 0, reward))
    group = GroupRecord(0, "t", (ID,), (1.0,), "trained")
    ledger = Ledger(20, trained=4, zero_variance=8, surplus=2, cancelled=1, system_error={"user": 7}, carried=2)
    batch = Batch("r", 4, 4, 2, (group,), ledger, "short", 12.34, bound="batch", waves=3)
    display.batch(batch)
    assert lines() == [
        "step   4  pass rate 0.250  groups 1/1 informative in 3 waves  episodes 20 + 2 carried over = 4 trained + 8 "
        "zero-variance + 2 surplus + 7 system errors (user) + 1 cancelled  12.3 s  short batch, at rollout.batch"
    ]


def test_rare_buckets_are_named_only_when_they_hold_something():
    assert ledger_line(Ledger(4, trained=4)) == "episodes 4 = 4 trained + 0 zero-variance + 0 surplus"
    assert bands({"difficult": 0, "intermediate": 2}) == "2 intermediate"


def test_a_limit_below_the_configured_one_stands_beside_the_bar():
    config = configuration.resolve({"run": "r", "rollout": {"concurrency": 144}})
    limit = 144
    output = io.StringIO()
    console = Console(file=output, width=300, force_terminal=True)
    with StepDisplay(config, console, lambda: limit) as display:
        display.step(0)
        display.episode(graded(0, 0, 1.0))
        display._progress.refresh()
        assert "at once" not in output.getvalue()
        limit = 96
        display.episode(graded(0, 1, 1.0))
        display._progress.refresh()
    assert "96 at once, as the actors bear" in output.getvalue()
