"""Only the failed sample runs again, with backoff, within its retries by kind."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from protocol.config import Outage, Retries, Retry
from protocol.records import Trajectory, Verdict
from rollout_engine.errors import ActorError, BackendError, UserError
from rollout_engine.gate import Gate
from rollout_engine.group import GroupPlan, GroupResult, run_group
from rollout_engine.journal import Journal

TASK = SimpleNamespace(id="travel/x/train/1")


class Log:
    def __init__(self):
        self.records = []

    async def publish_attempts(self, record):
        self.records.append(record)

    async def attempts(self, step):
        return self.records


@pytest.fixture
def run():
    """``await run(episode, group, logged, **settings)``: the result, its ledger, and what was told of failures."""

    async def run(episode, group=0, logged=None, retries=None, concurrency=144, log=None, failed=None):
        async def changed(outages):
            raise AssertionError("one task's errors are no outage")

        journal = await Journal.open(log or Log(), "r", 0)
        plan = GroupPlan(
            retries or Retries(Retry(times=2, backoff=1.0)),
            trio.CapacityLimiter(concurrency),
            Gate(Outage(), changed, tasks=9),
            journal,
            episode,
            failed or (lambda id, error, again: None),
        )
        result = GroupResult.of(group, TASK.id, 4, logged or {})
        await run_group(plan, result, TASK)
        ended = {(s.id.group, s.id.sample, s.id.attempt): "trained" for s in result.samples if s}
        return result, journal.ledger(ended)

    return run


def graded(id):
    return Trajectory(id, TASK.id, "travel", "x", 0, (), Verdict(float(id.sample % 2)), "done")


async def test_a_system_error_runs_that_sample_again_and_no_other(run, autojump_clock):
    calls, told = [], []

    async def episode(task, id):
        calls.append((id.sample, id.attempt, trio.current_time()))
        if id.sample == 2 and id.attempt < 2:
            raise ActorError("down")
        return graded(id)

    start = trio.current_time()
    result, ledger = await run(episode, 5, failed=lambda id, error, again: told.append((str(id), str(error), again)))
    assert result.whole and result.informative
    assert sorted((s, a) for s, a, _ in calls) == [(0, 0), (1, 0), (2, 0), (2, 1), (2, 2), (3, 0)]
    assert [t - start for s, _, t in calls if s == 2] == [0.0, 1.0, 3.0]
    assert ledger.started == 6 and ledger.system_error == result.errors == {"actor": 2}
    assert result.samples[2].id.attempt == 2
    assert told == [("r/0/5/2/0", "down", 1.0), ("r/0/5/2/1", "down", 2.0)]


async def test_each_kind_of_error_has_a_budget_and_a_backoff_of_its_own(run, autojump_clock):
    errors = [UserError, ActorError, UserError, ActorError, BackendError]
    times = []

    async def episode(task, id):
        if id.sample == 0:
            times.append(trio.current_time())
            if id.attempt < len(errors):
                raise errors[id.attempt]("down")
        return graded(id)

    retries = Retries(Retry(times=1, backoff=1.0), actor=Retry(2, 10.0), user=Retry(2, 0.25, max_backoff=0.3))
    result, ledger = await run(episode, retries=retries)
    assert result.whole and ledger.system_error == {"actor": 2, "backend": 1, "user": 2}
    assert [b - a for a, b in pairwise(times)] == pytest.approx([0.25, 10.0, 0.3, 20.0, 1.0])


async def test_a_service_that_asks_for_a_longer_pause_gets_it(run, autojump_clock):
    times = []

    async def episode(task, id):
        if id.sample == 3:
            times.append(trio.current_time())
            if id.attempt == 0:
                error = ActorError("answered 429")
                error.retry_after = 17.0
                raise error
        return graded(id)

    await run(episode)
    assert times[1] - times[0] == 17.0


async def test_out_of_retries_leaves_the_group_incomplete(run, autojump_clock):
    told = []

    async def episode(task, id):
        if id.sample == 1:
            raise ActorError("down")
        return graded(id)

    result, ledger = await run(episode, failed=lambda id, error, again: told.append(again))
    assert not result.whole and not result.informative
    assert result.samples[1] is None and ledger.system_error == {"actor": 3} and ledger.started == 6
    assert told == [1.0, 2.0, None]


async def test_samples_on_the_log_do_not_run_again(run):
    ran = []

    async def episode(task, id):
        ran.append(id.sample)
        return graded(id)

    first, _ = await run(episode)
    ran.clear()
    result, ledger = await run(episode, logged={0: first.samples[0], 3: first.samples[3]})
    assert sorted(ran) == [1, 2] and result.whole and ledger.started == 4


async def test_attempts_go_on_counting_where_a_killed_engine_left_off(run):
    log, ids = Log(), []

    async def killed(task, id):
        if id.sample == 1:
            raise KeyboardInterrupt
        return graded(id)

    with pytest.raises(BaseExceptionGroup):
        await run(killed, log=log)

    async def episode(task, id):
        ids.append((id.sample, id.attempt))
        return graded(id)

    result, ledger = await run(episode, log=log)
    assert sorted(ids) == [(0, 1), (1, 1), (2, 1), (3, 1)]
    assert ledger.started == 8 and ledger.trained == 4 and ledger.cancelled == 4


async def test_concurrency_is_bounded(run, autojump_clock):
    running = peak = 0

    async def episode(task, id):
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await trio.sleep(1)
        running -= 1
        return graded(id)

    await run(episode, concurrency=3)
    assert peak == 3
