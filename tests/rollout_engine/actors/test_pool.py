"""Placement, failover and waiting of the actor pool, under trio's mock clock."""

from __future__ import annotations

import json
import time
from collections import Counter
from contextlib import asynccontextmanager

import httpx
import pytest
import trio
import trio.testing

from protocol.config import Config, resolve
from protocol.records import ActorLoad, ActorStatus
from rollout_engine.actors import pool as pools
from rollout_engine.actors.policy import GenerateRequest, Generation, Sampling
from rollout_engine.actors.pool import ActorPool
from rollout_engine.actors.vllm import ActorBusy, ActorRefusal
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

    def pool(self, wait: float = 10.0, max_staleness: int = 0) -> ActorPool:
        return ActorPool(self.look, self.actors.__getitem__, wait=wait, require_wait=wait, max_staleness=max_staleness)


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


async def test_later_versions_within_the_bound_will_do(autojump_clock: trio.testing.MockClock) -> None:
    world = World("a", "b", "c", "d")
    for version, url in enumerate(world.actors):
        world.said[url] = status(url, version)
    pool = world.pool(max_staleness=1)
    await pool.require(1)
    for actor in world.actors.values():
        actor.gate = trio.Event()
    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(pool.generate, ask(f"e{number}"))
            await trio.testing.wait_all_tasks_blocked()
        assert [len(actor.asked) for actor in world.actors.values()] == [0, 4, 4, 0]
        for actor in world.actors.values():
            actor.gate.set()
    with pytest.raises(ActorError, match="policy version 4 to 5 after 10 s"):
        await pool.require(4)


async def test_a_busy_actors_requests_go_elsewhere_until_it_has_rested(autojump_clock: trio.testing.MockClock) -> None:
    world = World("a", "b")
    pool = world.pool()
    assert (await pool.generate(ask("e"))).actor == "a"
    world.actors["a"].failing = busy(5.0)
    assert (await pool.generate(ask("e"))).actor == "b"
    world.actors["a"].failing = None
    assert {(await pool.generate(ask(f"x{number}"))).actor for number in range(4)} == {"b"}
    await trio.sleep(5)
    assert {(await pool.generate(ask(f"y{number}"))).actor for number in range(4)} >= {"a"}
    assert pool.refused == 1


async def test_when_all_are_busy_the_first_to_have_rested_is_asked(autojump_clock: trio.testing.MockClock) -> None:
    world = World("a", "b")
    world.actors["a"].failing, world.actors["b"].failing = busy(8.0), busy(3.0)

    async def recover() -> None:
        await trio.sleep(1)
        world.actors["a"].failing = world.actors["b"].failing = None

    async with trio.open_nursery() as nursery:
        nursery.start_soon(recover)
        assert (await world.pool().generate(ask("e"))).actor == "b"
    assert 3 <= trio.current_time() < 3.5
    assert [len(actor.asked) for actor in world.actors.values()] == [1, 2]


async def test_an_actor_that_stays_busy_is_given_up_at_the_bound_with_what_it_asked_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World("a")
    world.actors["a"].failing = busy(2.0)
    with pytest.raises(ActorBusy) as caught:
        await world.pool(wait=10.0).generate(ask("e"))
    assert caught.value.retry_after == 2.0
    assert 10 <= trio.current_time() < 13


def busy(retry_after: float) -> ActorBusy:
    error = ActorBusy("429")
    error.retry_after = retry_after
    return error


class Served(httpx.AsyncBaseTransport):
    """vLLM's token endpoint at two and more URLs, over HTTP, in scripted time.

    ``speeds``: tokens a second that each host gives one request while it has few, of ``room`` at once.
    """

    def __init__(self, speeds: dict[str, float], room: int = 8):
        self.speeds, self.room = speeds, room
        self.labels = dict.fromkeys(speeds, "v0")
        self.down: set[str] = set()
        self.running = dict.fromkeys(speeds, 0)
        self.answered: Counter[str] = Counter()
        self.prompts: dict[str, list[list[int]]] = {host: [] for host in speeds}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        host, body = request.url.host, json.loads(request.content)
        self.prompts[host].append(body["token_ids"])
        if host in self.down:
            raise httpx.ConnectError("refused")
        self.running[host] += 1
        try:
            tokens = body["sampling_params"]["max_tokens"]
            await trio.sleep(tokens / self.speeds[host] * max(1.0, self.running[host] / self.room))
        finally:
            self.running[host] -= 1
        self.answered[host] += 1
        ids = list(range(100, 100 + tokens))
        choice = {
            "token_ids": ids,
            "logprobs": {"content": [{"logprob": -0.5}] * tokens},
            "finish_reason": "length",
            "weight_versions": [{"version": self.labels[host], "start": 0, "end": tokens}],
        }
        return httpx.Response(200, json={"choices": [choice]})


@asynccontextmanager
async def served(world: World, transport: Served, monkeypatch, **rollout):
    """A pool on a bus that says what ``world`` says, its requests answered by ``transport``."""

    @asynccontextmanager
    async def client():
        async with httpx.AsyncClient(transport=transport) as made:
            yield made

    monkeypatch.setattr(pools, "_client", client)
    bus = ScriptedBus()
    bus.statuses = world.said.values()
    config = resolve({"run": "r", "rollout": {"limits": {"generate": 30.0}, **rollout}})
    async with ActorPool.on_bus(bus, config) as pool, trio.open_nursery() as nursery:
        nursery.start_soon(keep_looking, pool)
        yield pool
        nursery.cancel_scope.cancel()


async def keep_looking(pool: ActorPool) -> None:
    while True:
        await trio.sleep(2)
        await pool.look()


def urls(*hosts: str) -> list[str]:
    return [f"http://{host}:8000" for host in hosts]


async def play_episodes(pool: ActorPool, count: int, turns: int = 6, tokens: int = 40) -> None:
    """Episodes that come one a second, each of some turns."""

    async def episode(number: int) -> None:
        for _ in range(turns):
            await pool.generate(GenerateRequest([1], tokens, Sampling(), (), f"e{number}"))

    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(episode, number)
            await trio.sleep(1)


async def test_a_slow_actor_gets_less(autojump_clock: trio.testing.MockClock, monkeypatch) -> None:
    world, transport = World(*urls("fast", "slow")), Served({"fast": 40.0, "slow": 10.0})
    async with served(world, transport, monkeypatch) as pool:
        await pool.require(0)
        await play_episodes(pool, 120)
    assert transport.answered.total() == 120 * 6
    # As many in flight at each would give the slow one a fifth, and the run its slow episodes as a tail.
    assert 0 < transport.answered["slow"] < 120 * 6 / 15
    assert trio.current_time() < 150


async def test_an_actor_that_comes_in_mid_run_is_used_as_soon_as_it_serves(
    autojump_clock: trio.testing.MockClock, monkeypatch
) -> None:
    old, new = urls("old", "new")
    world, transport = World(old), Served({"old": 40.0, "new": 40.0})
    async with served(world, transport, monkeypatch) as pool:
        await pool.require(0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(play_episodes, pool, 60)
            await trio.sleep(20)
            world.said[new] = status(new, version=-1, serving=False, note="loading v0")
            await trio.sleep(10)
            assert transport.answered["new"] == 0, "not before it has caught up"
            world.said[new] = status(new)
            await trio.sleep(10)
            assert transport.answered["new"] > 10
    assert 0.25 < transport.answered["new"] / transport.answered["old"] < 0.4, "half of the second half"


async def test_an_episode_moves_with_its_ids_and_each_token_keeps_its_version(
    autojump_clock: trio.testing.MockClock, monkeypatch
) -> None:
    home, other = urls("home", "other")
    world, transport = World(home, other), Served({"home": 40.0, "other": 30.0})
    transport.labels["other"] = "v1"
    world.said[other] = status(other, version=1, serving=False)
    async with served(world, transport, monkeypatch, max_staleness=1) as pool:
        await pool.require(0)
        first = await pool.generate(GenerateRequest([1, 2, 3], 4, Sampling(), (), "e"))
        transport.down.add("home")
        world.said[home] = status(home, serving=False)
        world.said[other] = status(other, version=1)
        prompt = [1, 2, 3, *first.ids, 9]
        second = await pool.generate(GenerateRequest(prompt, 4, Sampling(), (), "e"))
    assert (first.actor, first.versions) == (home, [0] * 4)
    assert (second.actor, second.versions) == (other, [1] * 4)
    assert transport.prompts["other"] == [prompt]


@pytest.mark.parametrize("well", [True, False])
async def test_provisional_tokens_wait_for_their_actors_proof(
    well: bool, autojump_clock: trio.testing.MockClock, monkeypatch
) -> None:
    a, b = urls("a", "b")
    world, transport = World(a, b), Served({"a": 40.0, "b": 4.0})
    transport.labels |= {"a": "v1?", "b": "v1"}
    world.said[b] = status(b, version=1, running=9)

    async def prove() -> None:
        await trio.sleep(6)
        world.said[a] = status(a, version=1) if well else status(a, -1, serving=False, note="probe refused: 0.9")

    async with served(world, transport, monkeypatch, max_staleness=1) as pool, trio.open_nursery() as nursery:
        await pool.require(0)
        nursery.start_soon(prove)
        generation = await pool.generate(GenerateRequest([1], 40, Sampling(), (), "e"))
    assert generation.versions == [1] * 40
    assert generation.actor == (a if well else b), "a failed proof sends the turn to another actor"
    seconds = trio.current_time()
    assert 6 <= seconds < 6.5 if well else 16 <= seconds < 16.5


class ScriptedBus:
    run = "r"

    def __init__(self, *statuses: ActorStatus):
        self.statuses = list(statuses)

    async def actors(self) -> list[ActorStatus]:
        return self.statuses


CONFIG: Config = resolve({"run": "r"})


NO_ACTOR = "no actor at all is registered for run r: start one with `bin/actor"


async def test_no_registered_actor_is_a_configuration_error_that_says_how_to_start_one(autojump_clock) -> None:
    with pytest.raises(ConfigurationError, match=NO_ACTOR):
        async with ActorPool.on_bus(ScriptedBus(), CONFIG):
            pass
    assert trio.current_time() == 0


@pytest.mark.parametrize("urls", [[], ["http://a:1"]])
async def test_an_actor_that_fell_silent_may_come_back_while_an_engine_starts(autojump_clock, urls) -> None:
    stale = ActorStatus("id", "http://a:1", "m", 0, True, time=time.time() - 60)
    with pytest.raises(ConfigurationError, match="no actor"):
        async with ActorPool.on_bus(ScriptedBus(stale), CONFIG, urls):
            pass
    assert 30 <= trio.current_time() < 31
    bus = ScriptedBus(stale)
    async with trio.open_nursery() as nursery:

        async def come_back() -> None:
            await trio.sleep(9)
            bus.statuses = [status("http://a:1")]

        nursery.start_soon(come_back)
        async with ActorPool.on_bus(bus, CONFIG, urls):
            assert 39 <= trio.current_time() < 41


async def test_a_named_url_that_is_not_registered_is_named() -> None:
    bus = ScriptedBus(status("http://a:1"))
    with pytest.raises(ConfigurationError, match="no actor at http://b:2 .* --url http://b:2"):
        async with ActorPool.on_bus(bus, CONFIG, ["http://a:1/", "http://b:2"]):
            pass


async def test_nobody_at_the_urls_is_a_configuration_error_naming_them() -> None:
    with pytest.raises(ConfigurationError, match="no actor answers at http://127.0.0.1:9: .*bin/actor"):
        async with ActorPool.attached(["http://127.0.0.1:9"], CONFIG):
            pass
