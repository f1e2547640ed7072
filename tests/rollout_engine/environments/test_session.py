import gc
from contextlib import AsyncExitStack

import anyio
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_engine.environments.backend import Backend, replay
from rollout_engine.environments.catalogue import DOMAINS, domain
from rollout_engine.environments.registry import generate
from rollout_engine.environments.session import open_session
from rollout_engine.environments.task import calls_of
from rollout_engine.errors import BackendError

TASKS = generate(DOMAINS, "train", 40)

WRONG_CALLS = [
    ("fly", {}),
    ("refund", {"payment_id": "P000", "amount": 7}),
    ("refund", {"payment_id": "P000", "amount": "7"}),
    ("refund", {"payment_id": "P000"}),
    ("refund", {"payment_id": "P000", "amount": 7, "extra": None}),
    ("close_ticket", {"ticket_id": "[1]", "resolution": "resolved"}),
    ("close_ticket", {"ticket_id": "T000", "resolution": '"resolved"'}),
]


def stable(snapshot):
    """A snapshot without what the clock writes."""
    return {
        table: {
            key: {column: value for column, value in row.items() if not column.endswith("_at")}
            for key, row in rows.items()
        }
        for table, rows in snapshot.items()
    }


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
async def test_mcp_and_the_synchronous_route_agree(task):
    backend = Backend(domain(task.domain), task.rows)
    async with open_session(task) as session:
        for call in task.oracle:
            assert await session.call(call.name, call.arguments) == backend.call(call.name, call.arguments)
        for name, arguments in WRONG_CALLS:
            result = await session.call(name, arguments)
            assert result == backend.call(name, arguments)
            assert result.is_error
        assert stable(session.finish()) == stable(backend.finish())


@pytest.mark.parametrize("name", DOMAINS)
async def test_the_server_lists_the_domains_tools(name):
    listed = await domain(name).server.list_tools()
    assert [
        {"name": tool.name, "description": tool.description, "parameters": tool.input_schema} for tool in listed
    ] == domain(name).tools


scripts = st.sampled_from([(task, script) for task in TASKS for script in (task.script, task.slips[0].script)])


@settings(deadline=None, max_examples=40)
@given(plays=st.lists(scripts, min_size=2, max_size=5), data=st.data())
def test_interleaved_sessions_do_not_touch_each_other(plays, data):
    alone = [replay(domain(task.domain), task, calls_of(script)) for task, script in plays]
    turns = [index for index, (_, script) in enumerate(plays) for _ in calls_of(script)]
    order = data.draw(st.permutations(turns))

    async def together():
        async with AsyncExitStack() as stack:
            sessions = [await stack.enter_async_context(open_session(task)) for task, _ in plays]
            waiting = [iter(calls_of(script)) for _, script in plays]
            results = [[] for _ in plays]
            for index in order:
                call = next(waiting[index])
                results[index].append(await sessions[index].call(call.name, call.arguments))
            return results, [stable(session.finish()) for session in sessions]

    results, snapshots = trio.run(together)
    assert results == [answers for answers, _ in alone]
    assert snapshots == [stable(snapshot) for _, snapshot in alone]


async def test_three_hundred_sessions_at_once():
    expected = [stable(replay(domain(task.domain), task, task.oracle)[1]) for task in TASKS]
    finished = {}

    async def episode(number):
        task = TASKS[number % len(TASKS)]
        async with open_session(task) as session:
            await everyone_is_in.wait()
            for call in task.oracle:
                await trio.lowlevel.checkpoint()
                assert not (await session.call(call.name, call.arguments)).is_error
            finished[number] = stable(session.finish())

    everyone_is_in = trio.Event()
    async with trio.open_nursery() as nursery:
        for number in range(300):
            nursery.start_soon(episode, number)
        await trio.testing.wait_all_tasks_blocked()
        everyone_is_in.set()
    assert len(finished) == 300
    assert all(snapshot == expected[number % len(TASKS)] for number, snapshot in finished.items())


async def test_a_late_write_never_changes_a_grade():
    task = TASKS[0]
    async with open_session(task) as session:
        session.finish()
        with pytest.raises(BackendError, match="after the backend was closed"):
            await session.call(task.oracle[0].name, task.oracle[0].arguments)


async def test_a_crash_is_a_system_error_and_not_a_tool_error():
    async with open_session(TASKS[0]) as session:
        session._backend._connection.close()
        with pytest.raises(BackendError, match="crashed: ProgrammingError"):
            await session.call(TASKS[0].oracle[0].name, TASKS[0].oracle[0].arguments)


async def test_what_the_body_raises_comes_out_as_it_is():
    with pytest.raises(BackendError, match="^plain$"):
        async with open_session(TASKS[0]):
            raise BackendError("plain")


async def test_a_call_over_its_bound_is_a_system_error(autojump_clock):
    async with open_session(TASKS[0], call_timeout=3.0) as session:

        async def hang(*_):
            await trio.sleep_forever()

        session._client.send_request = hang
        started = trio.current_time()
        with pytest.raises(BackendError, match="took over 3 s"):
            await session.call("refund", {})
        assert trio.current_time() - started == pytest.approx(3.0)


async def test_a_cancelled_session_closes_its_backend():
    with trio.CancelScope() as scope:
        async with open_session(TASKS[0]) as session:
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    with pytest.raises(BackendError, match="closed"):
        session._backend.call("refund", {})


def test_a_session_runs_on_asyncio_too():
    task = TASKS[0]

    async def episode():
        async with open_session(task) as session:
            results = [await session.call(call.name, call.arguments) for call in task.oracle]
            return results, stable(session.finish())

    results, snapshot = anyio.run(episode, backend="asyncio")
    alone, expected = replay(domain(task.domain), task, task.oracle)
    assert (results, snapshot) == (alone, stable(expected))


async def test_a_closed_session_leaves_nothing_for_a_full_garbage_collection():
    tasks = generate(["travel", "retail"], "train", 20)

    async def sessions() -> None:
        for task in tasks:
            async with open_session(task) as session:
                for call in calls_of(task.script)[:1]:
                    await session.call(call.name, call.arguments)
                session.finish()
            gc.collect(1)  # what a call leaves is young, and found at once

    await sessions()
    gc.collect()
    gc.disable()
    try:
        await sessions()
        assert gc.collect() < 5 * len(tasks)
    finally:
        gc.enable()
