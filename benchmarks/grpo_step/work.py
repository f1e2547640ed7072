"""The work of the comparison, written to a folder: ``model/``, a Hugging Face folder, and ``work.npz`` with ``ids``
int32 [8, 256], ``advantages`` float32 [8] and ``behaviour`` float32 [8, 192], the model's own log-probabilities with
some noise, so that a few ratios are clipped."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax
import numpy as np

from learner.logprobs import token_logprobs
from learner.models.family import head
from learner.models.huggingface import init_params, read_config
from learner.models.model import Model
from learner.weights import write_tensors

PROMPT, SAMPLED, ROWS = 64, 192, 8
NOISE = 0.1
CONFIG = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 32_768,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "rope_theta": 1_000_000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "max_position_embeddings": 4096,
}


def write(folder: Path) -> None:
    model = folder / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(CONFIG))
    config = read_config(model)
    params = init_params(config, jax.random.key(0))
    write_tensors(model / "model.safetensors", config, params, "float32")

    rng = np.random.default_rng(0)
    ids = rng.integers(2, config.vocab_size, (ROWS, PROMPT + SAMPLED), np.int32)
    positions = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
    hidden = Model(config).apply({"params": params}, ids, positions, np.ones_like(ids))
    logprobs, _ = token_logprobs(hidden[:, PROMPT - 1 : -1], head(params), ids[:, PROMPT:], chunk=256)
    behaviour = np.asarray(logprobs) + NOISE * rng.normal(size=logprobs.shape).astype(np.float32)
    rewards = np.arange(ROWS) % 2
    advantages = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
    np.savez(folder / "work.npz", ids=ids, advantages=advantages.astype(np.float32), behaviour=behaviour)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
