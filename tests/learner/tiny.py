"""A tiny model folder and a hand-made log, for the learner's tests."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np

from learner.models.family import ModelConfig
from learner.models.huggingface import init_params, read_config
from learner.packing import Stream
from learner.weights import write_tensors
from protocol.config import Config, resolve
from protocol.log import LogWriter
from protocol.records import Batch, GroupRecord, Ledger, TokenArrays, Trajectory, TrajectoryId, Verdict

SIZES = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "max_position_embeddings": 512,
}
HYBRID = {
    "model_type": "qwen3_5_text",
    "full_attention_interval": 2,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
"""What makes a gated-delta hybrid of them: every second layer is one of attention."""


def init(config: ModelConfig, seed: int = 0):
    return init_params(config, jax.random.key(seed))


def write_config(folder: Path, **changes) -> ModelConfig:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**SIZES, **changes}))
    return read_config(folder)


def make_model(folder: Path, **changes) -> ModelConfig:
    """A model folder with random weights."""
    config = write_config(folder, **changes)
    write_tensors(folder / "model.safetensors", config, init(config), "float32")
    return config


def make_streams(count: int, seed: int = 0, longest: int = 60, vocab: int = 64) -> list[Stream]:
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(count):
        length = int(rng.integers(12, longest + 1))
        sampled = np.sort(rng.choice(np.arange(4, length), length // 3, replace=False))
        weights, behaviour = rng.normal(size=(2, len(sampled))).astype(np.float32)
        out.append(Stream(rng.integers(0, vocab, length).astype(np.int32), sampled, weights, behaviour * 0.3 - 4.2))
    return out


def make_batch(
    step: int, run: str = "tiny", groups: int = 2, group_size: int = 4, equal: bool = False, version=None, older=0
):
    """(batch, trajectories): ``equal`` makes every group's rewards equal, in bucket zero_variance.

    Tokens are of ``version`` (default: ``step``), the first half of each odd sample's of ``older`` versions before it.
    """
    rng = np.random.default_rng(step)
    records, trajectories = [], []
    for group in range(groups):
        rewards = [1.0] * group_size if equal else [float(i % 2 == group % 2) for i in range(group_size)]
        ids = tuple(TrajectoryId(run, step, group, sample) for sample in range(group_size))
        for id, reward in zip(ids, rewards, strict=True):
            (stream,) = make_streams(1, seed=int(rng.integers(1 << 30)))
            mask = np.zeros(len(stream.ids), np.uint8)
            mask[stream.sampled] = 1
            newest = step if version is None else version
            versions = np.full(len(stream.sampled), newest)
            if older and id.sample % 2:
                versions[: len(versions) // 2] = newest - older
            oldest, *newer = np.unique(versions).tolist()
            trajectories.append(
                Trajectory(
                    id=id,
                    task=f"tiny/none/train/{group}",
                    domain="tiny",
                    family="none",
                    policy_version=oldest,
                    newer_versions=tuple(newer),
                    messages=(),
                    verdict=Verdict(reward),
                    finish="done",
                    tokens=TokenArrays.pack(stream.ids, mask, stream.behaviour, versions),
                )
            )
        bucket = "zero_variance" if equal else "trained"
        streams = [t.tokens.unpack().mask for t in trajectories[-group_size:]]
        tokens = tuple(int(np.flatnonzero(mask)[-1]) + 1 for mask in streams)
        sampled = tuple(int(mask.sum()) for mask in streams)
        task = f"tiny/none/train/{group}"
        records.append(GroupRecord(group, task, ids, tuple(rewards), bucket, tokens=tokens, sampled=sampled))
    count = groups * group_size
    ledger = Ledger(started=count, trained=0 if equal else count, zero_variance=count if equal else 0)
    oldest = min(trajectory.policy_version for trajectory in trajectories)
    return Batch(run, step, oldest, group_size, tuple(records), ledger, "short" if equal else "full"), trajectories


def write_log(path: Path, steps: int, max_staleness: int = 0) -> None:
    with LogWriter(path, "tiny") as log:
        for step in range(steps):
            batch, trajectories = make_batch(step, older=min(step, max_staleness))
            for trajectory in trajectories:
                log.write(trajectory)
            log.write(batch)


def make_config(folder: Path, max_staleness: int = 0, **learner) -> Config:
    """A run in ``folder/tiny`` whose model folder is ``folder/tiny/base``."""
    defaults = {
        "steps": 4,
        "row_tokens": 64,
        "rows_per_microbatch": 4,
        "logprob_chunk": 64,
        "weights_dtype": "float32",
        "checkpoint_every": 2,
        "optimizer": {"learning_rate": 1e-2},
    }
    learner = {**defaults, **learner}
    tree = {
        "run": "tiny",
        "folder": str(folder),
        "model": {"folder": "base"},
        "rollout": {"limits": {"episode_tokens": learner["row_tokens"]}, "max_staleness": max_staleness},
        "learner": learner,
    }
    return resolve(tree)
