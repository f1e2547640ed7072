"""With top-k and top-p, the ratio between a real vLLM and the learner is between the same distributions."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import jax
import numpy as np
import pytest

from learner.mesh import make_mesh
from learner.models.huggingface import init_params, load_params, param_shapes, read_config
from learner.packing import Stream, pack
from learner.step import Step
from learner.streams import Member, stream
from learner.weights import write_tensors
from protocol.config import Config, resolve
from protocol.log import LogWriter, read
from protocol.records import Trajectory, TrajectoryId, Verdict
from protocol.server import free_port
from rollout_engine.actors.policy import GenerateRequest, Generation, Sampling
from rollout_engine.actors.server import ROOT, VllmServer
from rollout_engine.actors.vllm import VllmActor
from rollout_engine.tokens.stream import TokenStream
from tests.integration.tiny_qwen3 import write_model

pytestmark = pytest.mark.vllm

PROMPTS = [[5 + i, 9, 70, 12, *range(30, 60)] for i in range(8)]
NEW = 64
TEMPERATURE = 0.9
SAMPLINGS = {"top-k": (24, 1.0), "top-k and top-p": (20, 0.95)}
"""vLLM names 20 candidates at most unless it is told otherwise."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A model far from uniform, so that truncation takes much away from some tokens and little from others."""
    folder = tmp_path_factory.mktemp("truncated") / "model"
    write_model(folder, seed=0, tied=False)
    config = read_config(folder, remat="none")
    params = jax.tree.map(lambda x: x * 3.0 if x.ndim >= 2 else x, init_params(config, jax.random.key(3)))
    write_tensors(folder / "model.safetensors", config, params, "float32")
    return folder


def configured(folder: Path) -> Config:
    return resolve(
        {
            "run": "truncated",
            "folder": str(folder.parent),
            "model": {"max_model_len": 256},
            "actor": {"port": free_port(), "dtype": "float32", "start_timeout": 300.0},
            "rollout": {"sampling": {"top_k": 24, "temperature": TEMPERATURE}, "limits": {"episode_tokens": 128}},
            "learner": {"row_tokens": 128, "rows_per_microbatch": 8, "weights_dtype": "float32"},
        }
    )


@pytest.fixture(scope="module")
def generations(folder: Path) -> dict[str, list[Generation]]:
    """A turn of each prompt, by sampling; every other one by the endpoint for completions."""

    async def ask() -> dict[str, list[Generation]]:
        config = configured(folder)
        server = VllmServer(config, config.path / "vllm.log", str(ROOT / ".venv" / "actor" / "bin" / "python"))
        async with httpx.AsyncClient() as client:
            try:
                await server.start(folder)
                policies = [VllmActor(server.url, client, timeout=120.0, version=0) for _ in range(2)]
                # As if the token endpoint were closed.
                policies[1]._model = await policies[1]._served_model()
                out: dict[str, list[Generation]] = {}
                for name, (top_k, top_p) in SAMPLINGS.items():
                    sampling = Sampling(TEMPERATURE, top_k, top_p)
                    requests = [GenerateRequest(p, NEW, sampling, (), "e", seed) for seed, p in enumerate(PROMPTS)]
                    asked = [policy.generate(request) for policy, request in zip(policies * 4, requests, strict=True)]
                    out[name] = await asyncio.gather(*asked)
            finally:
                await server.stop()
        return out

    return asyncio.run(ask())


def logged(generations: list[Generation], path: Path, width: int) -> list[Stream]:
    """What the learner reads back from a log of one episode a generation, all with advantage 1."""
    with LogWriter(path, "truncated") as log:
        for sample, (prompt, generation) in enumerate(zip(PROMPTS, generations, strict=True)):
            tokens = TokenStream()
            tokens.observe(prompt)
            tokens.sample(generation.ids, generation.logprobs, generation.versions, generation.support)
            id = TrajectoryId("truncated", 0, 0, sample)
            log.write(Trajectory(id, "t", "d", "f", 0, (), Verdict(1.0), "done", tokens.arrays()))
    trajectories = list(read([path]).trajectories.values())
    members = [Member(t.id, 1.0, np.float32(1.0), None, None) for t in trajectories]
    return [stream(m, t, 0, support=width) for m, t in zip(members, trajectories, strict=True)]


@pytest.fixture(scope="module")
def step(folder: Path) -> tuple[Step, dict]:
    config, model = configured(folder), read_config(folder, remat="none")
    step = Step(model, config.learner, make_mesh("1x1"), param_shapes(model), TEMPERATURE)
    return step, load_params(model, folder, step.params)


@pytest.mark.parametrize("name", SAMPLINGS)
def test_at_equal_weights_actor_and_learner_agree_on_what_was_sampled_from(name, generations, step, tmp_path):
    width = SAMPLINGS[name][0]
    streams = logged(generations[name], tmp_path / "log.jsonl", width)
    sizes = np.concatenate([(s.support >= 0).sum(1) for s in streams])
    assert sizes.max() <= width and (name != "top-k" or (sizes == width).all())
    assert len(np.unique(sizes)) > 5 or name == "top-k"

    def difference(width: int) -> tuple[float, float]:
        """(mean, max) of |learner - actor| log-probability."""
        _, sums, tokens = step[0].gradients(step[1], pack(streams, 128, 8, support=width))
        return float(sums.difference) / tokens, float(sums.largest)

    before, after = difference(0), difference(width)
    print(json.dumps({"sampling": name, "over the vocabulary": before, "over the support": after}))
    assert after[0] < 1e-5 and after[1] < 2e-4
    assert before[0] > 100 * after[0] and before[1] > 100 * after[1]
