from __future__ import annotations

import pytest
import trio

from protocol.config import Outage, Retries, Retry
from rollout_engine.errors import ActorError, BackendError, RunStopped, UserError
from rollout_engine.evaluation.attempts import AttemptFile, PolicyStamp
from rollout_engine.evaluation.coverage import check_coverage
from rollout_engine.evaluation.repeats import missing_keys, run_attempts
from rollout_engine.gate import Gate
from tests.rollout_engine.evaluation.samples import task, trajectory

TASKS = [task("travel/refund/heldout/0"), task("retail/reship/heldout/0")]
IDS = [t.id for t in TASKS]
MANY = [task(f"travel/refund/heldout/{number}") for number in range(20)]
BASE = PolicyStamp("base", 0, "cafe")


def retries(times):
    return Retries(Retry(times=times, backoff=0.5))


def gate(told=None, **settings):
    """``told`` gets the kinds of the open outages at each change."""

    async def changed(outages):
        if told is not None:
            told.append([outage.kind for outage in outages])

    return Gate(Outage(**settings), changed, len(MANY))


async def run(runner, attempts=2, concurrency=4, done=(), times=0, tasks=TASKS, gate_=None):
    rows, passage = [], gate_ or gate()
    await run_attempts(
        tasks, attempts, runner, concurrency, set(done), retries(times), rows.append, gate=passage, policy=BASE
    )
    return rows


async def test_every_missing_key_yields_one_row():
    async def runner(task, attempt, retry):
        return trajectory(task.id, attempt, reward=float(attempt == 0), version=3)

    rows = await run(runner, done=[(IDS[0], 1)])
    assert [row.key for row in rows] == [(IDS[0], 0), (IDS[1], 0), (IDS[1], 1)]
    first = rows[0]
    assert first.policy == PolicyStamp("base", 3, "cafe")
    assert (first.reward, first.finish, first.seed) == (1.0, "done", 7)
    assert (first.sampled_tokens, first.prompt_tokens, first.seconds) == (12, 300, 1.5)
    assert rows[2].reasons == ("bookings BK1: wrong status",)


async def test_admission_is_task_by_task_and_bounded(autojump_clock):
    started, running, most = [], 0, 0

    async def runner(task, attempt, retry):
        nonlocal running, most
        started.append((task.id, attempt))
        running += 1
        most = max(most, running)
        # The later an attempt starts, the sooner it ends.
        await trio.sleep(10 - len(started))
        running -= 1
        return trajectory(task.id, attempt)

    rows = await run(runner, attempts=4, concurrency=3)
    assert started == [(id, n) for id in IDS for n in range(4)]
    assert [row.key for row in rows] != started
    assert most == 3


async def test_a_system_error_runs_again_with_doubling_waits(autojump_clock):
    tries = []

    async def runner(task, attempt, retry):
        tries.append((task.id, attempt, retry, trio.current_time() - begin))
        if task.id == IDS[0] and retry < 2:
            raise ActorError("connection refused")
        return trajectory(task.id, attempt)

    begin = trio.current_time()
    rows = await run(runner, attempts=1, concurrency=1, times=3)
    assert tries == [(IDS[0], 0, 0, 0.0), (IDS[0], 0, 1, 0.5), (IDS[0], 0, 2, 1.5), (IDS[1], 0, 0, 1.5)]
    assert all(row.reward == 1.0 for row in rows)


async def test_after_the_last_retry_the_row_says_what_failed(autojump_clock):
    async def runner(task, attempt, retry):
        if task.id == IDS[0]:
            raise BackendError(f"crash {retry}")
        return trajectory(task.id, attempt)

    rows = await run(runner, attempts=1, times=2)
    failed = next(row for row in rows if row.task == IDS[0])
    assert failed.reward is None
    assert (failed.error.kind, failed.error.message) == ("backend", "crash 2")


async def test_an_outage_pauses_the_campaign_and_makes_no_error_rows(autojump_clock):
    began, refused, told = trio.current_time(), 0, []

    async def runner(task, attempt, retry):
        nonlocal refused
        await trio.sleep(1)
        if trio.current_time() - began < 600:
            refused += 1
            raise UserError("user model at http://models: ConnectError")
        return trajectory(task.id, attempt)

    outage = gate(told, errors=6, among=8, probe=5.0, max_probe=60.0)
    rows = await run(runner, concurrency=8, times=1, tasks=MANY, gate_=outage)
    assert len(rows) == 40 and all(row.error is None for row in rows)
    assert refused < 30 and 600 < trio.current_time() - began < 700
    assert told[0] == ["user"] and told[-1] == []


async def test_an_outage_that_lasts_too_long_stops_the_campaign(autojump_clock):
    async def runner(task, attempt, retry):
        raise UserError("ConnectError")

    outage = gate(errors=4, among=8, probe=5.0, max_probe=60.0, longest=300.0)
    with pytest.raises(ExceptionGroup) as caught:
        await run(runner, concurrency=8, times=1, tasks=MANY, gate_=outage)
    assert caught.group_contains(RunStopped, match="system errors of kind 'user' for 300 s")
    assert 300 <= trio.current_time() < 400


async def test_a_defect_ends_the_campaign():
    async def runner(task, attempt, retry):
        raise KeyError("bug")

    with pytest.raises(ExceptionGroup) as caught:
        await run(runner)
    assert caught.group_contains(KeyError)


async def test_the_transcript_comes_before_the_row():
    order = []

    async def runner(task, attempt, retry):
        return trajectory(task.id, attempt)

    await run_attempts(
        TASKS[:1],
        1,
        runner,
        1,
        set(),
        retries(0),
        lambda row: order.append(("row", row.key)),
        gate=gate(),
        policy=BASE,
        on_trajectory=lambda trajectory, key: order.append(("transcript", key)),
    )
    assert order == [("transcript", (IDS[0], 0)), ("row", (IDS[0], 0))]


async def test_a_killed_campaign_goes_on_where_it_was(tmp_path):
    path = tmp_path / "base.jsonl"
    runs = []

    async def campaign(stop_after):
        async def runner(task, attempt, retry):
            if len(runs) == stop_after:
                raise KeyboardInterrupt
            runs.append((task.id, attempt))
            if (task.id, attempt) == (IDS[0], 1) and runs.count((IDS[0], 1)) == 1:
                raise ActorError("gone")
            return trajectory(task.id, attempt)

        with AttemptFile(path, BASE) as file:
            await run_attempts(TASKS, 3, runner, 1, file.done, retries(0), file.append, gate=gate(), policy=BASE)
            return list(file.rows)

    with pytest.raises(BaseExceptionGroup) as caught:
        await campaign(stop_after=4)
    assert caught.group_contains(KeyboardInterrupt)
    rows = await campaign(stop_after=None)
    assert runs[4:] == [(IDS[0], 1), (IDS[1], 1), (IDS[1], 2)]
    assert check_coverage(rows, IDS, 3).complete


def test_missing_keys_are_in_admission_order():
    assert missing_keys(TASKS, 2, {(IDS[0], 0)}) == [(IDS[0], 1), (IDS[1], 0), (IDS[1], 1)]
