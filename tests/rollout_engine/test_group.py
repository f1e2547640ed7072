"""Only the failed sample runs again, with backoff, within its retries."""

from types import SimpleNamespace

import trio
import trio.testing

from protocol.records import Trajectory, Verdict
from rollout_engine.errors import ActorError, BackendError
from rollout_engine.group import GroupPlan, run_group

TASK = SimpleNamespace(id="travel/x/train/1")


def plan(episode, retries=2, concurrency=144):
    return GroupPlan("r", 0, 4, retries, 1.0, trio.CapacityLimiter(concurrency), episode)


def graded(id):
    return Trajectory(id, TASK.id, "travel", "x", 0, (), Verdict(float(id.sample % 2)), "done")


async def test_a_system_error_runs_that_sample_again_and_no_other(autojump_clock):
    calls = []

    async def episode(task, id):
        calls.append((id.sample, id.attempt, trio.current_time()))
        if id.sample == 2 and id.attempt < 2:
            raise (ActorError if id.attempt == 0 else BackendError)("down")
        return graded(id)

    start = trio.current_time()
    result = await run_group(plan(episode), 5, TASK, {})
    assert result.whole and result.informative
    assert sorted((s, a) for s, a, _ in calls) == [(0, 0), (1, 0), (2, 0), (2, 1), (2, 2), (3, 0)]
    assert [t - start for s, _, t in calls if s == 2] == [0.0, 1.0, 3.0]
    assert result.started == 6 and result.errors == {"actor": 1, "backend": 1}
    assert result.samples[2].id.attempt == 2


async def test_out_of_retries_leaves_the_group_incomplete(autojump_clock):
    async def episode(task, id):
        if id.sample == 1:
            raise ActorError("down")
        return graded(id)

    result = await run_group(plan(episode), 0, TASK, {})
    assert not result.whole and not result.informative
    assert result.samples[1] is None and result.errors == {"actor": 3} and result.started == 6


async def test_samples_on_the_log_do_not_run_again():
    ran = []

    async def episode(task, id):
        ran.append(id.sample)
        return graded(id)

    first = await run_group(plan(episode), 0, TASK, {})
    ran.clear()
    result = await run_group(plan(episode), 0, TASK, {0: first.samples[0], 3: first.samples[3]})
    assert sorted(ran) == [1, 2] and result.whole and result.started == 4


async def test_concurrency_is_bounded(autojump_clock):
    running = peak = 0

    async def episode(task, id):
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await trio.sleep(1)
        running -= 1
        return graded(id)

    await run_group(plan(episode, concurrency=3), 0, TASK, {})
    assert peak == 3
