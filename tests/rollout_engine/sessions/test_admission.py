"""Room: both bounds, the order of asking, and nothing lost to those who give up."""

import pytest
import trio
import trio.testing

from rollout_engine.sessions.admission import Room
from rollout_engine.sessions.errors import HostFull


async def test_both_bounds_hold_and_order_is_kept(autojump_clock):
    room = Room(places=3, memory=100)
    order = []

    async def session(name, amount, seconds):
        async with room.taken(amount, timeout=1000):
            order.append((name, trio.current_time()))
            assert room.used_places <= 3 and room.used_memory <= 100
            await trio.sleep(seconds)

    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        for name, amount, seconds in [("a", 60, 10), ("b", 60, 10), ("c", 10, 10), ("d", 10, 10)]:
            nursery.start_soon(session, name, amount, seconds)
            await trio.testing.wait_all_tasks_blocked()
    # c and d would fit beside a, but b asked before them.
    assert [(name, time - start) for name, time in sorted(order)] == [("a", 0), ("b", 10), ("c", 10), ("d", 10)]
    assert (room.used_places, room.used_memory) == (0, 0)


async def test_waiting_is_bounded_and_named(autojump_clock):
    room = Room(places=1, memory=100)
    async with room.taken(50, timeout=1):
        start = trio.current_time()
        with pytest.raises(HostFull, match="no room for a session within 7 s: 1 of 1 places"):
            async with room.taken(50, timeout=7):
                pass
        assert trio.current_time() - start == pytest.approx(7)
    async with room.taken(50, timeout=1):
        assert room.used_places == 1
    assert room.used_memory == 0


async def test_a_request_larger_than_everything_is_let_in_alone(autojump_clock):
    room = Room(places=5, memory=100)
    async with room.taken(500, timeout=1):
        with pytest.raises(HostFull):
            async with room.taken(1, timeout=1):
                pass
    assert room.used_memory == 0


async def test_one_who_gives_up_makes_way_for_those_behind(autojump_clock):
    room = Room(places=5, memory=100)
    entered = []

    async def small():
        async with room.taken(10, timeout=100):
            entered.append(trio.current_time())

    async with room.taken(50, timeout=1):
        start = trio.current_time()
        async with trio.open_nursery() as nursery:

            async def large():
                with pytest.raises(HostFull):
                    async with room.taken(90, timeout=3):
                        pass

            nursery.start_soon(large)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(small)
    assert entered == [start + 3]
    assert (room.used_places, room.used_memory) == (0, 0)


async def test_admitted_and_cancelled_in_one_moment_gives_the_place_back():
    room = Room(places=1, memory=100)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def hold(task_status):
                async with room.taken(1, timeout=100):
                    task_status.started()
                    await trio.testing.wait_all_tasks_blocked()
                    scope.cancel()  # whoever waits is cancelled, and then admitted by our leaving

            await nursery.start(hold)
            async with room.taken(1, timeout=100):
                pass
    assert (room.used_places, room.used_memory) == (0, 0)
