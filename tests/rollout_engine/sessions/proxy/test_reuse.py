"""Sessions with equal configurations are clones of one initialized session, which lives as long as they do."""

from contextlib import AsyncExitStack

import pytest
import trio
import trio.testing
from scripted_host import Host

from rollout_engine.sessions.errors import InitFailed
from rollout_engine.sessions.proxy.reuse import reusing

NOTES, OTHER, THIRD = {"notes": {"written": ["a"]}}, {"notes": {"written": ["b"]}}, {"notes": {}}


def living(host):
    return len(host.opened) - len(host.closed)


async def test_equal_configurations_are_initialized_once_and_kept_apart():
    host = Host()
    async with reusing(host, 2) as reuser:
        assert reuser.servers == host.servers
        async with (
            reuser.open(NOTES, seed=1, tools=["write"]) as one,
            reuser.open(NOTES, seed=2, tools=["write"]) as two,
        ):
            await one.call("write", {"text": "c"})
            assert (await two.effects(), host.cloned) == ({"notes": {"written": ["a"]}}, [1, 2])
        async with reuser.open(NOTES, seed=3, tools=["write"]) as three:
            assert await three.effects() == {"notes": {"written": ["a"]}}
        assert (len(host.opened), living(host)) == (1, 1)
        async with reuser.open(NOTES, tools=["fail"]), reuser.open(OTHER):
            assert len(host.opened) == 3
    assert living(host) == 0


async def test_many_that_come_at_once_wait_for_one_initialization(autojump_clock):
    host = Host()
    slow = {"notes": {"slow": 5}}
    async with reusing(host, 1) as reuser, trio.open_nursery() as nursery:

        async def use():
            async with reuser.open(slow):
                assert trio.current_time() == 5

        for _ in range(4):
            nursery.start_soon(use)
    assert len(host.opened) == 1 == len(host.closed)


async def test_a_world_in_use_keeps_its_place_and_an_idle_one_gives_way():
    host = Host()
    async with reusing(host, 1) as reuser:
        async with reuser.open(NOTES):
            async with reuser.open(OTHER):
                assert (len(host.templates), living(host)) == (1, 2)
            assert living(host) == 1
        async with reuser.open(OTHER):
            await trio.testing.wait_all_tasks_blocked()
            assert (len(host.templates), living(host)) == (2, 1)


async def test_what_cannot_be_cloned_is_opened_afresh_and_remembered():
    host = Host(clones=False)
    async with reusing(host, 2) as reuser:
        for _ in range(3):
            async with reuser.open(NOTES) as session:
                assert (await session.effects(), host.cloned) == ({"notes": {"written": ["a"]}}, [])
        async with reuser.open(OTHER):
            pass
    assert len(host.templates) == 1 and living(host) == 0


async def test_a_world_that_died_is_replaced_once_its_clones_are_gone():
    host = Host()
    async with reusing(host, 2) as reuser:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(reuser.open(NOTES, seed=1))
            host.templates[0].dead = True
            async with reuser.open(NOTES, seed=2) as fresh:
                assert await fresh.effects() == {"notes": {"written": ["a"]}} and host.cloned == [1]
            await trio.testing.wait_all_tasks_blocked()
            assert living(host) == 1
        await trio.testing.wait_all_tasks_blocked()
        assert living(host) == 0
        async with reuser.open(NOTES, seed=3):
            assert host.cloned == [3]


async def test_an_init_that_is_refused_is_told():
    async with reusing(Host(), 1) as reuser:
        for _ in range(2):
            with pytest.raises(InitFailed, match="broken"):
                async with reuser.open({"notes": {"broken": True}}):
                    pass
        async with reuser.open(THIRD):
            pass


async def test_none_is_the_host_itself():
    host = Host()
    async with reusing(host, 0) as same:
        assert same is host
