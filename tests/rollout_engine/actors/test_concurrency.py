"""Concurrency follows the actors' load, as a pure function and around a simulated actor."""

import random

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from protocol.config import Rollout
from protocol.records import ActorLoad, ActorStatus
from rollout_engine.actors.concurrency import Concurrency, LoadMeter, Reading
from rollout_engine.actors.slots import Slots

IDLE = Reading(running=10, waiting=0, kv_use=0.2)


@pytest.mark.parametrize(
    ("reading", "overloaded", "room"),
    [
        (IDLE, False, True),
        (Reading(100, 12, 0.59), False, True),
        (Reading(100, 13, 0.59), False, False),
        (Reading(100, 0, 0.6), False, False),
        (Reading(100, 100, 0.3), False, False),
        (Reading(100, 101, 0.3), True, False),
        (Reading(0, 1, 0.0), False, True),
        (Reading(100, 0, 0.9), True, False),
        (Reading(100, 0, 0.85), False, False),
        (Reading(100, 0, 0.85, preempted=1), True, False),
        # What a weight update sends back to the queue is no overload.
        (Reading(100, 0, 0.5, preempted=100), False, True),
        (Reading(100, 0, 0.1, refused=1), True, False),
    ],
)
def test_what_is_too_much_and_what_is_room(reading, overloaded, room):
    assert (reading.overloaded, reading.room) == (overloaded, room)


def test_a_cut_is_a_fifth_and_the_next_waits_until_it_has_taken_effect():
    control, full = Concurrency(8, 100), Reading(100, 0, 0.95)
    assert control.observe(full, 100, 0, True) == 80
    assert control.observe(full, 95, 5, True) == 80, "fifteen still have to end"
    assert control.observe(full, 80, 15, True) == 64
    assert control.observe(full, 30, 40, False) == 24, "what runs is too much, not what might"


def test_after_a_turnover_with_room_the_next_grows_by_a_quarter_where_more_is_wanted():
    control = Concurrency(8, 100)
    control.observe(Reading(100, 0, 0.95), 50, 0, True)
    assert control.limit == 40
    assert control.observe(IDLE, 40, 40, True) == 40, "one turnover to see"
    assert control.observe(IDLE, 40, 20, True) == 45
    assert control.observe(IDLE, 45, 20, True) == 50
    assert control.observe(IDLE, 30, 20, False) == 50, "the end of a step says nothing"
    assert control.observe(Reading(40, 0, 0.7), 50, 40, True) == 50
    assert control.observe(IDLE, 50, 50, True) == 50, "and from there one turnover again"
    assert control.observe(IDLE, 50, 1000, True) == 100


readings = st.builds(
    Reading, st.integers(0, 500), st.integers(0, 500), st.floats(0, 1), st.integers(0, 3), st.integers(0, 3)
)


@given(
    st.integers(1, 300),
    st.integers(1, 300),
    st.lists(st.tuples(readings, st.integers(0, 400), st.integers(0, 400), st.booleans()), max_size=60),
)
def test_the_bounds_hold_whatever_is_said(least, most, said):
    control = Concurrency(least, most)
    assert control.limit == most
    for reading, in_flight, ended, wanted in said:
        before = control.limit
        after = control.observe(reading, in_flight, ended, wanted)
        assert min(least, most) <= after <= most
        assert after <= before or not reading.overloaded


def status(id: str, at: float, **load) -> ActorStatus:
    return ActorStatus(id, f"http://{id}", "m", 0, True, ActorLoad(**load), time=at)


def test_counts_that_only_grow_become_what_they_grew_by():
    meter = LoadMeter()
    assert meter.read([], 0) is None
    first = [status("a", 1.0, running=3, waiting=1, kv_use=0.5, preemptions=7), status("b", 1.5, running=2, kv_use=0.7)]
    assert meter.read(first, 4) == Reading(5, 1, 0.7, preempted=0, refused=4)
    assert meter.read(first, 5) is None, "nobody has said anything new"
    # a went on, b was started again, c is new and has a past of its own.
    second = [status("a", 3.0, preemptions=9), status("b", 3.0), status("c", 3.0, preemptions=50)]
    assert meter.read(second, 6) == Reading(0, 0, 0.0, preempted=2, refused=2)


class SimulatedActor:
    """Its cache holds ``cache`` tokens; an episode takes more of it with every turn, ``most`` in the end.

    Stands in for the pool, too.
    """

    def __init__(self, cache: float, most: float = 100.0, turns: int = 10):
        self.cache, self.most, self.turns, self.random = cache, most, turns, random.Random(0)
        self.held: dict[object, float] = {}
        self.preemptions = self.refused = 0
        self.history: list[tuple[int, float]] = []

    async def episode(self, slots: Slots) -> None:
        async with slots:
            key = object()
            turns = self.random.randrange(self.turns // 2, 2 * self.turns)
            for turn in range(turns):
                self.held[key] = self.most * (turn + 1) / turns
                if sum(self.held.values()) > self.cache:
                    self.preemptions += 1
                await trio.sleep(3)
            del self.held[key]

    async def look(self) -> list[ActorStatus]:
        use = min(1.0, sum(self.held.values()) / self.cache)
        self.history.append((len(self.held), use))
        load = {"running": len(self.held), "kv_use": use, "preemptions": self.preemptions}
        return [status("a", trio.current_time(), **load)]


class Events:
    def __init__(self):
        self.told = []

    async def emit(self, kind, data):
        self.told.append((kind, data))


async def test_episodes_follow_the_room_of_an_actor_down_and_up_again(autojump_clock):
    # A cache for 40 average episodes, 200 wanted: then half of it is lost, then five times as much comes.
    actor, events = SimulatedActor(cache=40 * 55.0), Events()
    slots = Slots(Rollout(concurrency=200, min_concurrency=4))
    phases = []
    async with trio.open_nursery() as nursery:

        async def launch() -> None:
            while True:
                while slots._limiter.statistics().tasks_waiting < 5:
                    nursery.start_soon(actor.episode, slots)
                    await trio.lowlevel.checkpoint()
                await trio.sleep(0.5)

        nursery.start_soon(launch)
        nursery.start_soon(slots.follow, actor, events, 2.0)
        for cache in (40 * 55.0, 20 * 55.0, 100 * 55.0):
            actor.cache, actor.history = cache, []
            await trio.sleep(600)
            thrown = actor.preemptions
            await trio.sleep(600)
            running, use = zip(*actor.history[-250:], strict=True)
            phases.append((sum(running) / len(running), sum(use) / len(use), actor.preemptions - thrown))
        nursery.cancel_scope.cancel()
    for (running, use, thrown), bears in zip(phases, (40, 20, 100), strict=True):
        assert 0.5 * bears < running < 0.9 * bears, phases
        assert 0.5 < use < 0.9, phases
        assert thrown == 0, phases
    assert {kind for kind, _ in events.told} == {"concurrency"}
    assert events.told[0][1]["limit"] < 200 and events.told[0][1]["kv_use"] > 0.8


async def test_slots_admit_no_more_than_the_bound_and_count_what_ended(autojump_clock):
    slots, running = Slots(Rollout(concurrency=3, min_concurrency=8)), []

    async def episode() -> None:
        async with slots:
            running.append(len(running))
            assert slots._limiter.borrowed_tokens <= 3
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        for _ in range(9):
            nursery.start_soon(episode)
    assert len(running) == 9 and trio.current_time() == 3 and slots.limit == 3
