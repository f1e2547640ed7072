"""The portal gives one parent to every call, whoever calls."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest
import trio
import trio.testing

from protocol.errors import BusClosed
from protocol.portal import Portal


async def _double(value: int) -> int:
    await asyncio.sleep(0)
    return 2 * value


async def _fail() -> None:
    raise ZeroDivisionError("inside")


async def test_results_and_errors_come_back_to_trio():
    with Portal() as portal:
        assert await portal.call_from_trio(_double, 21) == 42
        with pytest.raises(ZeroDivisionError, match="inside"):
            await portal.call_from_trio(_fail)


def test_results_and_errors_come_back_to_a_blocking_caller():
    with Portal() as portal:
        assert portal.call(_double, 21) == 42
        with pytest.raises(ZeroDivisionError, match="inside"):
            portal.call(_fail)


async def test_calls_from_many_trio_tasks_run_at_once():
    barrier = asyncio.Barrier(20)
    results: dict[int, int] = {}

    async def meet(index: int) -> int:
        await barrier.wait()
        return index

    async def call(portal: Portal, index: int) -> None:
        results[index] = await portal.call_from_trio(meet, index)

    with Portal() as portal, trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            for index in range(20):
                nursery.start_soon(call, portal, index)
    assert results == {index: index for index in range(20)}


async def test_cancelling_the_trio_task_cancels_the_coroutine_and_waits_for_its_cleanup():
    begun, ended = threading.Event(), threading.Event()

    async def forever() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.set()

    with Portal() as portal:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(portal.call_from_trio, forever)
            await trio.to_thread.run_sync(begun.wait, 10)
            nursery.cancel_scope.cancel()
        # The nursery has closed, so the coroutine must have ended: nothing outlives its parent.
        assert ended.is_set()


async def test_cancelling_before_the_coroutine_has_begun():
    with Portal() as portal:
        with trio.CancelScope() as scope:
            scope.cancel()
            await portal.call_from_trio(asyncio.sleep, 60)
        assert scope.cancelled_caught


async def test_a_closed_portal_says_so():
    with Portal() as portal:
        pass
    with pytest.raises(BusClosed, match="async with"):
        await portal.call_from_trio(_double, 1)
    with pytest.raises(BusClosed, match="with"):
        portal.call(_double, 1)


def test_leaving_ends_what_was_left_running():
    ended = threading.Event()

    async def leave_behind() -> None:
        async def linger() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        portal.kept = asyncio.create_task(linger())
        await asyncio.sleep(0)

    with Portal() as portal:
        portal.call(leave_behind)
    assert ended.is_set()


@pytest.mark.parametrize("module", ["protocol.bus", "learner.batches"])
def test_nothing_here_imports_trio_or_jax_for_those_who_do_not_use_it(module: str):
    code = f"import sys, {module}; print([m for m in ('trio', 'anyio', 'jax') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
