"""What the learner exports, vLLM serves: the same greedy ids and the same log-probabilities."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner.models.family import head
from learner.models.huggingface import init_params, read_config
from learner.models.model import Model
from learner.weights import write_tensors
from protocol.config import resolve
from protocol.server import free_port
from rollout_engine.actors.policy import GenerateRequest, Sampling
from rollout_engine.actors.server import ROOT, VllmServer
from rollout_engine.actors.vllm import VllmActor
from tests.integration.tiny_qwen3 import write_model

pytestmark = pytest.mark.vllm

PROMPTS = [[5, 9, 70, 12], list(range(30, 90)), [3 + 7 * i % 250 for i in range(100)]]
NEW = 24


def greedy(folder: Path) -> list[tuple[list[int], list[float]]]:
    """Ids and log-probabilities by the learner's own forward pass, one token at a time."""
    config = read_config(folder, remat="none")
    params = init_params(config, jax.random.key(3))
    params = jax.tree.map(lambda x: x * 3.0 if x.ndim == 3 else x, params)  # far from uniform
    write_tensors(folder / "model.safetensors", config, params, "float32")

    @jax.jit
    def logits(ids, length):
        places = jnp.arange(ids.shape[1])[None]
        hidden = Model(config).apply({"params": params}, ids, places, (places < length).astype(jnp.int32))
        return jax.nn.log_softmax(hidden[0, length - 1] @ head(params))

    outcomes = []
    for prompt in PROMPTS:
        ids, logprobs = list(prompt), []
        for _ in range(NEW):
            padded = np.zeros((1, 160), np.int32)
            padded[0, : len(ids)] = ids
            scores = np.asarray(logits(padded, len(ids)))
            ids.append(int(scores.argmax()))
            logprobs.append(float(scores.max()))
        outcomes.append((ids[len(prompt) :], logprobs))
    return outcomes


async def served(folder: Path, tmp: Path) -> list[tuple[list[int], list[float]]]:
    actor = {"port": free_port(), "dtype": "float32", "start_timeout": 300.0}
    config = resolve({"run": "export", "folder": str(tmp), "model": {"max_model_len": 256}, "actor": actor})
    server = VllmServer(config, config.path / "vllm.log", str(ROOT / ".venv" / "actor" / "bin" / "python"))
    async with httpx.AsyncClient() as client:
        try:
            await server.start(folder)
            policy = VllmActor(server.url, client, timeout=60.0, version=0)
            answers = [
                await policy.generate(GenerateRequest(p, NEW, Sampling(temperature=0.0), stop_ids=(), episode="e"))
                for p in PROMPTS
            ]
        finally:
            await server.stop()
    return [(answer.ids, answer.logprobs) for answer in answers]


LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "rope_theta": 1e5}


@pytest.mark.parametrize(
    ("changes", "tied"),
    [({}, False), ({}, True), (LLAMA, True)],
    ids=["qwen3", "qwen3-tied", "llama"],
)
def test_greedy_ids_are_equal(tmp_path, changes, tied):
    folder = tmp_path / "model"
    write_model(folder, seed=0, tied=tied)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    expected = greedy(folder)
    actual = asyncio.run(served(folder, tmp_path))
    for (ids, logprobs), (wanted, scores) in zip(actual, expected, strict=True):
        assert ids == wanted
        assert len(set(ids)) > 3, "a constant answer compares nothing"
        # At temperature 0 vLLM reports the greedy choice's log-probability of the untempered distribution.
        np.testing.assert_allclose(logprobs, scores, atol=1e-4)
