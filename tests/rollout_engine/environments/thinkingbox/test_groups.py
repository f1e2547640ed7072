"""Templates of groups: one while it is needed, gone when it isn't, another after a fault."""

from contextlib import asynccontextmanager

import pytest
import trio

from rollout_engine.environments.thinkingbox.groups import LINGER, GroupSessions
from rollout_engine.sessions.errors import InitFailed, SessionDied


class Host:
    """Counts templates; ``fail`` is raised by the next opening, ``dead`` by every clone of those open by then."""

    def __init__(self):
        self.seeds, self.open, self.fail, self.dead = [], 0, None, set()

    @asynccontextmanager
    async def template(self, configs, seed, tools):
        await trio.sleep(0.1)
        if self.fail:
            fault, self.fail = self.fail, None
            raise fault
        self.seeds.append(seed)
        self.open += 1
        number = len(self.seeds)
        try:
            yield Template(self, number)
        finally:
            self.open -= 1


class Template:
    def __init__(self, host, number):
        self.host, self.number = host, number

    @asynccontextmanager
    async def clone(self, seed):
        if self.number in self.host.dead:
            raise SessionDied("the template is gone")
        yield (self.number, seed)


@pytest.fixture
async def groups():
    async with trio.open_nursery() as nursery:
        yield GroupSessions(Host(), nursery)
        nursery.cancel_scope.cancel()


async def test_members_share_a_template_that_goes_once_nobody_came_for_a_while(groups, autojump_clock):
    host, got = groups._host, []

    async def member(group, seed, seconds):
        async with groups.open(group, {}, seed, ()) as session:
            got.append(session)
            await trio.sleep(seconds)

    async with trio.open_nursery() as nursery:
        for seed in range(4):
            nursery.start_soon(member, "a", seed, 10 * seed)
        nursery.start_soon(member, "b", 9, 1)
    assert {number for number, seed in got if seed < 9} != {number for number, seed in got if seed == 9}
    assert len(host.seeds) == 2 and host.open == 1  # b's had its time, a's last member has just left
    await trio.sleep(LINGER - 1)
    await member("a", 7, 0)
    assert len(host.seeds) == 2
    await trio.sleep(LINGER + 1)
    assert host.open == 0
    await member("a", 8, 0)
    assert len(host.seeds) == 3 and host.seeds[2] in host.seeds[:2]  # what init draws is the group's


async def test_a_template_that_cannot_be_opened_fails_its_members_and_the_next_one_tries_again(groups, autojump_clock):
    groups._host.fail = InitFailed("no")
    failed = []

    async def member():
        try:
            async with groups.open("a", {}, 0, ()):
                pass
        except Exception as error:
            failed.append(str(error))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(member)
        nursery.start_soon(member)
    assert failed == ["the group's session could not be opened: no"] * 2
    await member()
    assert len(failed) == 2


async def test_a_template_that_cannot_be_cloned_any_more_is_replaced(groups, autojump_clock):
    async with groups.open("a", {}, 0, ()) as (number, _):
        assert number == 1
    groups._host.dead.add(1)
    with pytest.raises(SessionDied):
        async with groups.open("a", {}, 1, ()):
            pass
    async with groups.open("a", {}, 1, ()) as (number, _):
        assert number == 2
