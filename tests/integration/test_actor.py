"""``bin/actor`` with a real vLLM server and a real bus: follow, prove, fail over, leave nothing behind."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec
import numpy as np
import psutil
import pytest
import trio

from protocol.bus import Bus, connect
from protocol.config import Config, resolve
from protocol.records import ActorStatus, PolicyVersion, Probe
from protocol.server import free_port
from rollout_engine.actors.policy import GenerateRequest, Generation, Sampling
from rollout_engine.actors.pool import ActorPool
from rollout_engine.actors.server import ROOT
from tests.integration.tiny_qwen3 import reference_logprobs, write_model

pytestmark = [pytest.mark.vllm, pytest.mark.nats]

PROMPT = [7 + 3 * i % 301 for i in range(70)]
WAIT = 240.0
"""Bound on everything here, for slow machines; nothing takes a tenth of it on a quiet one."""


@dataclass
class Actor:
    """A running ``bin/actor`` and what its learner would know."""

    config: Config
    process: subprocess.Popen
    models: dict[str, dict[str, str]]
    versions: Iterator[int] = field(default_factory=itertools.count)

    def server_processes(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    async def announce(self, bus: Bus, model: str, probe_of: str = "") -> int:
        """Publish the next version: the weights of ``model``, with the probe of another model if so told."""
        version = next(self.versions)
        expected = reference_logprobs(self.config.path / (probe_of or model), PROMPT).astype("<f4")
        probe = Probe(np.array(PROMPT, "<i4").tobytes(), expected.tobytes(), tolerance=0.001)
        folder = str(self.config.path / model)
        await bus.publish_policy(PolicyVersion(self.config.run, version, folder, self.models[model], probe))
        return version

    async def status_when(self, bus: Bus, wanted) -> ActorStatus:
        with trio.fail_after(WAIT):
            while True:
                for status in await bus.actors():
                    if wanted(status):
                        return status
                assert self.process.poll() is None, "bin/actor ended"
                await trio.sleep(0.1)


def start(config: Config) -> subprocess.Popen:
    file = config.path / "config.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({
        "run": config.run, "folder": config.folder, "nats": {"url": config.nats.url},
        "model": {"folder": "first", "max_model_len": 256},
        "actor": {"port": config.actor.port, "dtype": "float32", "health_every": 0.5},
    }))  # fmt: skip
    return subprocess.Popen([ROOT / "bin" / "actor", "--config", file, "--id", "one"], start_new_session=True)


@pytest.fixture(scope="module")
def actor(nats_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Actor]:
    tree = {
        "run": "actor",
        "folder": str(tmp_path_factory.mktemp("runs")),
        "nats": {"url": nats_url},
        "rollout": {"batch": WAIT, "limits": {"generate": WAIT}},
        "actor": {"port": free_port(), "health_every": 0.5},
    }
    config = resolve(tree)
    models = {name: write_model(config.path / name, seed) for seed, name in enumerate(("first", "second"))}
    process = start(config)
    yield Actor(config, process, models)
    process.terminate()
    assert process.wait(30) == 0


@asynccontextmanager
async def serving(actor: Actor, model: str) -> AsyncIterator[tuple[ActorPool, int]]:
    """Announce ``model``, and a pool that waits for it."""
    async with connect(actor.config.nats, actor.config.run) as bus:
        await actor.status_when(bus, lambda status: True)
        version = await actor.announce(bus, model)
        async with ActorPool.on_bus(bus, actor.config) as pool:
            await pool.require(version)
            yield pool, version


def request(stop_ids: tuple[int, ...] = (), tokens: int = 16) -> GenerateRequest:
    return GenerateRequest(PROMPT, tokens, Sampling(), stop_ids, episode="e")


async def test_engine_samples_from_each_announced_version(actor: Actor) -> None:
    for model in ("first", "second", "first"):
        async with serving(actor, model) as (pool, version):
            generation = await pool.generate(request())
        assert generation.versions == [version] * 16
        assert generation.finish == "length"
        expected = reference_logprobs(actor.config.path / model, PROMPT + generation.ids)[-16:]
        np.testing.assert_allclose(generation.logprobs, expected, atol=2e-4)


async def test_weights_change_under_running_requests_and_each_token_is_of_a_proven_version(actor: Actor) -> None:
    rollout = msgspec.structs.replace(actor.config.rollout, max_staleness=1)
    config = msgspec.structs.replace(actor.config, rollout=rollout)
    generations: list[Generation] = []

    async def generate_until(pool: ActorPool, version: int, number: int) -> None:
        while True:
            # Of different lengths, so that they don't all begin and end at the same instants.
            sampled = await pool.generate(GenerateRequest(PROMPT, 96 + 12 * number, Sampling(), (), f"e{number}"))
            generations.append(sampled)
            if sampled.versions[0] == version:
                return

    async with serving(actor, "first") as (_, before), connect(config.nats, config.run) as bus:
        async with ActorPool.on_bus(bus, config) as pool:
            await pool.require(before)
            async with trio.open_nursery() as nursery:
                for number in range(8):
                    nursery.start_soon(generate_until, pool, before + 1, number)
                while len(generations) < 4:
                    await trio.sleep(0.01)
                after = await actor.announce(bus, "second")
            assert pool.refused == 0
    assert {version for sampled in generations for version in sampled.versions} == {before, after}
    assert sum(len(set(sampled.versions)) == 2 for sampled in generations) >= 4, "most were running during the change"
    for sampled in generations:
        versions, logprobs = np.array(sampled.versions), np.array(sampled.logprobs)
        assert (np.diff(versions) >= 0).all()
        for version, model in ((before, "first"), (after, "second")):
            expected = reference_logprobs(config.path / model, PROMPT + sampled.ids)[-len(sampled.ids) :]
            np.testing.assert_allclose(logprobs[versions == version], expected[versions == version], atol=5e-4)


async def test_generation_ends_with_the_stop_id_it_sampled(actor: Actor) -> None:
    async with serving(actor, "first") as (pool, _):
        generation = await pool.generate(request(stop_ids=tuple(range(0, 320, 2)), tokens=100))
    assert generation.finish == "stop"
    assert generation.ids[-1] % 2 == 0
    assert all(id % 2 for id in generation.ids[:-1])


async def test_probe_refuses_other_weights_and_the_next_good_version_is_served(actor: Actor) -> None:
    async with connect(actor.config.nats, actor.config.run) as bus:
        await actor.announce(bus, "first", probe_of="second")
        refused = await actor.status_when(bus, lambda status: "probe refused" in status.note)
        assert not refused.serving
        good = await actor.announce(bus, "second")
        served = await actor.status_when(bus, lambda status: status.serving and status.version == good)
    assert served.proof < 0.001


async def test_killed_server_is_restarted_at_the_current_version(actor: Actor) -> None:
    async with serving(actor, "second") as (pool, version):
        before = actor.server_processes()
        before[0].kill()
        generation = await pool.generate(request())
    assert generation.versions == [version] * 16
    assert not psutil.wait_procs(before, timeout=10)[1]


async def test_killed_engine_core_is_noticed_though_the_server_process_lives(actor: Actor) -> None:
    async with serving(actor, "first") as (pool, version):
        core = next(process for process in actor.server_processes() if "EngineCore" in " ".join(process.cmdline()))
        core.kill()
        generation = await pool.generate(request())
    assert generation.versions == [version] * 16


async def test_a_killed_sidecar_leaves_no_process_behind(actor: Actor) -> None:
    config = resolve({
        "run": "orphan", "folder": actor.config.folder, "nats": {"url": actor.config.nats.url},
        "actor": {"port": free_port()},
    })  # fmt: skip
    write_model(config.path / "first", 0)
    process = start(config)
    async with connect(config.nats, config.run) as bus:
        with trio.fail_after(WAIT):
            while not any("no policy version" in status.note for status in await bus.actors()):
                await trio.sleep(0.1)
    processes = psutil.Process(process.pid).children(recursive=True)
    assert len(processes) >= 2
    process.kill()
    process.wait()
    with trio.fail_after(WAIT):
        while psutil.wait_procs(processes, timeout=0)[1]:
            await trio.sleep(0.1)
