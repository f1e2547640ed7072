"""A vLLM server whose weights were pushed computes what a fresh server on those weights computes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest

from protocol.config import Config, resolve
from protocol.server import free_port
from rollout_engine.actors.control import ServerControl, label
from rollout_engine.actors.policy import GenerateRequest, Generation, Sampling
from rollout_engine.actors.server import ROOT, VllmServer
from rollout_engine.actors.vllm import VllmActor
from tests.integration.tiny_qwen3 import reference_logprobs, write_model

pytestmark = pytest.mark.vllm

ACTOR_PYTHON = str(ROOT / ".venv" / "actor" / "bin" / "python")
SHARED = [7 + 3 * i % 301 for i in range(70)]
PROMPTS = [SHARED + [20 + i, 30 + i] for i in range(3)] + [SHARED + list(range(40, 60))]
"""They share two whole blocks of the prefix cache, so stale keys and values would show."""
WAIT = 300.0
"""Bound on all that is asked of two servers, for slow machines."""
GREEDY = Sampling(temperature=0.0)


@dataclass
class Outcome:
    ids: list[list[int]]
    logprobs: np.ndarray


@dataclass
class Observed:
    """What one server said at each stage, and what a fresh server on the second model said."""

    before: Outcome
    pushed: Outcome
    back: Outcome
    fresh: Outcome
    scored: dict[str, np.ndarray]
    seeded: list[Generation]
    held: Generation
    """A generation during which the second model's weights (version 2) replaced the first's (version 1)."""


def server_config(folder: Path) -> Config:
    actor = {"port": free_port(), "dtype": "float32", "start_timeout": 300.0}
    return resolve({"run": "weights", "folder": str(folder), "model": {"max_model_len": 256}, "actor": actor})


async def ask(actor: VllmActor, sampling: Sampling = GREEDY) -> Outcome:
    outcomes = [
        await actor.generate(GenerateRequest(prompt, 12, sampling, stop_ids=(), episode="e")) for prompt in PROMPTS
    ]
    return Outcome([o.ids for o in outcomes], np.array([o.logprobs for o in outcomes]))


async def push(control: ServerControl, folder: Path, version: int) -> None:
    await control.pause(60)
    await control.load_weights(folder, 60)
    await control.reset_prefix_cache(60)
    await control.set_weight_label(label(version))
    await control.resume()


async def generate_during_push(actor: VllmActor, control: ServerControl, second: Path) -> Generation:
    request = GenerateRequest(PROMPTS[0], 180, Sampling(), stop_ids=(), episode="e")
    generating = asyncio.ensure_future(actor.generate(request))
    while not generating.done() and (await control.load()).running == 0:
        await asyncio.sleep(0.01)
    await push(control, second, 2)
    return await generating


async def generate_seeded_at_once(actor: VllmActor, control: ServerControl) -> list[Generation]:
    """32 requests that start in one step, together twice as long as a step may be."""
    await control.pause(60)
    requests = [
        GenerateRequest([5 + seed, *PROMPTS[0], *PROMPTS[0]], 4, Sampling(), (), "e", seed) for seed in range(32)
    ]
    generating = asyncio.gather(*(actor.generate(request) for request in requests))
    for _ in range(50):
        # The engine core answers in order, so each answer means that it holds what arrived before.
        await control.weight_label()
    await control.resume()
    return await generating


async def observe(tmp: Path, first: Path, second: Path) -> Observed:
    configs = [server_config(tmp / name) for name in ("pushed", "fresh")]
    servers = [VllmServer(config, config.path / "vllm.log", ACTOR_PYTHON) for config in configs]
    async with httpx.AsyncClient() as client:
        actors = [VllmActor(server.url, client, timeout=60.0, version=0) for server in servers]
        control = ServerControl(servers[0].url, client, 60.0)
        try:
            await asyncio.gather(servers[0].start(first), servers[1].start(second))
            before = await ask(actors[0])
            scored = {"first": await control.logprobs(np.array(PROMPTS[-1]), 60.0)}
            await push(control, second, 2)
            pushed = await ask(actors[0])
            scored["second"] = await control.logprobs(np.array(PROMPTS[-1]), 60.0)
            await push(control, first, 1)
            back, fresh = await ask(actors[0]), await ask(actors[1])
            seeded = await generate_seeded_at_once(actors[0], control)
            held = await generate_during_push(VllmActor(servers[0].url, client, timeout=60.0), control, second)
            return Observed(before, pushed, back, fresh, scored, seeded, held)
        finally:
            await asyncio.gather(*(server.stop() for server in servers))


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(("first", "second")):
        write_model(folder / name, seed, tied=request.param)
    return folder / "first", folder / "second"


@pytest.fixture(scope="module")
def observed(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Observed:
    return asyncio.run(asyncio.wait_for(observe(tmp_path_factory.mktemp("servers"), *models), WAIT))


def assert_same(left: Outcome, right: Outcome) -> None:
    assert left.ids == right.ids
    np.testing.assert_allclose(left.logprobs, right.logprobs, atol=1e-5)


def test_pushed_weights_compute_what_a_fresh_server_computes(observed: Observed) -> None:
    assert_same(observed.pushed, observed.fresh)
    assert observed.pushed.ids != observed.before.ids


def test_pushing_the_first_weights_again_gives_the_first_answers_again(observed: Observed) -> None:
    assert_same(observed.back, observed.before)


def test_seeded_requests_beyond_one_steps_budget_are_served(observed: Observed) -> None:
    assert [len(generation.ids) for generation in observed.seeded] == [4] * 32


def test_request_held_over_a_push_goes_on_as_if_the_new_weights_had_read_all_before(
    observed: Observed, models: tuple[Path, Path]
) -> None:
    held = observed.held
    versions, logprobs = np.array(held.versions), np.array(held.logprobs)
    assert set(held.versions) == {1, 2}
    for version, folder in enumerate(models, 1):
        expected = reference_logprobs(folder, PROMPTS[0] + held.ids)[-len(held.ids) :]
        np.testing.assert_allclose(logprobs[versions == version], expected[versions == version], atol=5e-4)


def test_logprobs_of_sampled_tokens_are_those_of_the_model(observed: Observed, models: tuple[Path, Path]) -> None:
    for prompt, ids, logprobs in zip(PROMPTS, observed.before.ids, observed.before.logprobs, strict=True):
        expected = reference_logprobs(models[0], prompt + ids)[-len(ids) :]
        np.testing.assert_allclose(logprobs, expected, atol=2e-4)
        assert logprobs.max() < 0


def test_prompt_logprobs_are_those_of_the_model_at_temperature_1(observed: Observed, models: tuple[Path, Path]) -> None:
    for name, folder in zip(("first", "second"), models, strict=True):
        expected = reference_logprobs(folder, PROMPTS[-1])
        np.testing.assert_allclose(observed.scored[name], expected, atol=2e-4)
