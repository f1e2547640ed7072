"""Placement, failover and waiting of the actor pool, under trio's mock clock."""

from __future__ import annotations

import time

import pytest
import trio
import trio.testing

from protocol.config import Config, resolve
from protocol.records import ActorLoad, ActorStatus
from rollout_engine.actors.policy import GenerateRequest, Generation, Sampling
from rollout_engine.actors.pool import ActorPool
from rollout_engine.actors.vllm import ActorRefusal
from rollout_engine.errors import ActorError, ConfigurationError


class ScriptedActor:
    """Fails while ``failing`` holds an error; otherwise answers with the URL, after ``gate`` opens."""

    def __init__(self, url: str):
        self.url = url
        self.asked: list[str] = []
        self.failing: ActorError | None = None
        self.gate: trio.Event | None = None

    async def generate(self, request: GenerateRequest) -> Generation:
        self.asked.append(request.episode)
        if self.gate is not None:
            await self.gate.wait()
        if self.failing is not None:
            raise self.failing
        return Generation([1], [-0.1], [0], "stop", self.url)


class World:
    """Actors and what they say on the bus."""

    def __init__(self, *urls: str):
        self.actors = {url: ScriptedActor(url) for url in urls}
        self.said: dict[str, ActorStatus] = {url: status(url) for url in urls}

    async def look(self) -> dict[str, ActorStatus | None]:
        return dict(self.said)

    def pool(self, wait: float = 10.0) -> ActorPool:
        return ActorPool(self.look, self.actors.__getitem__, wait=wait, require_wait=wait)


def status(url: str, version: int = 0, serving: bool = True, note: str = "", running: int = 0) -> ActorStatus:
    # Half a minute ahead: later than any failure of this test.
    return ActorStatus("id", url, "m", version, serving, ActorLoad(running), time=time.time() + 30, note=note)


def ask(episode: str) -> GenerateRequest:
    return GenerateRequest([1], 4, Sampling(), (), episode)


async def test_an_episode_stays_with_its_actor() -> None:
    world = World("a", "b")
    pool = world.pool()
    chosen = {e: (await pool.generate(ask(e))).actor for e in ("e1", "e2", "e3")}
    for _ in range(3):
        for episode, url in chosen.items():
            assert (await pool.generate(ask(episode))).actor == url


async def test_new_episodes_go_where_fewest_requests_are_in_flight() -> None:
    world = World("a", "b", "c")
    for actor in world.actors.values():
        actor.gate = trio.Event()
    pool = world.pool()
    async with trio.open_nursery() as nursery:
        for number in range(9):
            nursery.start_soon(pool.generate, ask(f"e{number}"))
            await trio.testing.wait_all_tasks_blocked()
        assert [len(actor.asked) for actor in world.actors.values()] == [3, 3, 3]
        for actor in world.actors.values():
            actor.gate.set()


async def test_between_equals_the_actor_with_less_load_of_others_is_chosen() -> None:
    world = World("a", "b")
    world.said["a"] = status("a", running=40)
    assert (await world.pool().generate(ask("e"))).actor == "b"


async def test_a_failed_actors_episode_moves_and_stays_moved() -> None:
    world = World("a", "b")
    pool = world.pool()
    home = (await pool.generate(ask("e"))).actor
    other = "b" if home == "a" else "a"
    world.actors[home].failing = ActorError("gone")
    world.said[home] = status(home, serving=False)
    assert (await pool.generate(ask("e"))).actor == other
    world.actors[home].failing = None
    world.said[home] = status(home)
    assert (await pool.generate(ask("e"))).actor == other


async def test_a_refusal_is_not_tried_elsewhere() -> None:
    world = World("a", "b")
    for actor in world.actors.values():
        actor.failing = ActorRefusal("too long")
    with pytest.raises(ActorRefusal):
        await world.pool().generate(ask("e"))
    assert sum(len(actor.asked) for actor in world.actors.values()) == 1


async def test_a_lone_failed_actor_is_awaited_until_it_speaks_again(autojump_clock: trio.testing.MockClock) -> None:
    world = World("a")
    pool = world.pool(wait=60.0)
    await pool.generate(ask("e"))
    world.actors["a"].failing = ActorError("gone")
    world.said["a"] = status("a", serving=False, note="restarting")

    async def restart() -> None:
        await trio.sleep(20)
        world.actors["a"].failing = None
        world.said["a"] = status("a")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(restart)
        assert (await pool.generate(ask("e"))).actor == "a"
    assert 20 <= trio.current_time() < 21


async def test_a_heartbeat_from_before_the_failure_clears_nothing(autojump_clock: trio.testing.MockClock) -> None:
    world = World("a")
    pool = world.pool()
    await pool.require(0)
    world.actors["a"].failing = ActorError("gone")
    world.said["a"] = ActorStatus("id", "a", "m", 0, True, time=time.time() - 1)
    with pytest.raises(ActorError, match="gone; no actor serves policy version 0 after 10 s: a: has just failed"):
        await pool.generate(ask("e"))
    assert world.actors["a"].asked == ["e"]


async def test_actors_that_keep_failing_are_each_given_their_chance_then_the_error_comes_out() -> None:
    world = World("a", "b")
    for actor in world.actors.values():
        actor.failing = ActorError("500")
    with pytest.raises(ActorError, match="500; 500; 500"):
        await world.pool().generate(ask("e"))


async def test_only_actors_at_the_required_version_are_asked(autojump_clock: trio.testing.MockClock) -> None:
    world = World("a", "b")
    world.said["b"] = status("b", version=1)
    pool = world.pool()
    await pool.require(1)
    assert {(await pool.generate(ask(f"e{number}"))).actor for number in range(4)} == {"b"}


async def test_require_waits_for_the_version_and_gives_up_saying_what_the_actors_do(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World("a", "b")
    pool = world.pool(wait=10.0)

    async def arrive() -> None:
        await trio.sleep(4)
        world.said["a"] = status("a", version=1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(arrive)
        await pool.require(1)
    assert 4 <= trio.current_time() < 5
    world.said["b"] = status("b", serving=False, note="probe refused")
    with pytest.raises(ActorError, match="policy version 2 after 10 s: a: serves version 1; b: probe refused"):
        await pool.require(2)


class ScriptedBus:
    run = "r"

    def __init__(self, *statuses: ActorStatus):
        self.statuses = list(statuses)

    async def actors(self) -> list[ActorStatus]:
        return self.statuses


CONFIG: Config = resolve({"run": "r"})


async def test_no_registered_actor_is_a_configuration_error_that_says_how_to_start_one() -> None:
    stale = ActorStatus("id", "http://a:1", "m", 0, True, time=time.time() - 60)
    with pytest.raises(ConfigurationError, match="no actor at all is registered for run r: start one with `bin/actor"):
        async with ActorPool.on_bus(ScriptedBus(stale), CONFIG):
            pass


async def test_a_named_url_that_is_not_registered_is_named() -> None:
    bus = ScriptedBus(status("http://a:1"))
    with pytest.raises(ConfigurationError, match="no actor at http://b:2 .* --url http://b:2"):
        async with ActorPool.on_bus(bus, CONFIG, ["http://a:1/", "http://b:2"]):
            pass


async def test_nobody_at_the_urls_is_a_configuration_error_naming_them() -> None:
    with pytest.raises(ConfigurationError, match="no actor answers at http://127.0.0.1:9: .*bin/actor"):
        async with ActorPool.attached(["http://127.0.0.1:9"], CONFIG):
            pass
