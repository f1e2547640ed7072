"""Adapters on real parts: ``bin/learner`` trains them, ``bin/actor`` merges and loads them live, and both agree.

The test is the engine: it samples from the actor, hands out rewards and publishes batches.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import trio
from safetensors.numpy import load_file, save_file

from protocol import log
from protocol.bus import Bus, connect
from protocol.config import Config, resolve
from protocol.records import (
    ActorStatus,
    Batch,
    GroupRecord,
    Ledger,
    PolicyVersion,
    TokenArrays,
    Trajectory,
    TrajectoryId,
    Verdict,
)
from protocol.server import free_port
from rollout_engine.actors.policy import GenerateRequest, Sampling
from rollout_engine.actors.pool import ActorPool
from rollout_engine.actors.server import ROOT
from tests.integration.tiny_qwen3 import reference_logprobs, write_model

pytestmark = [pytest.mark.vllm, pytest.mark.nats]

STEPS, GROUPS, SAMPLES, TOKENS = 3, 2, 4, 24
WAIT = 300.0
"""Bound on everything here, for slow machines."""


class Run(NamedTuple):
    config: Config
    file: Path
    versions: list[PolicyVersion]
    served: list[ActorStatus]
    """The actor's word on each version."""
    logs: list[Path]


@pytest.fixture(scope="module")
def run(nats_url: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("lora")
    tree = {
        "run": "lora",
        "folder": str(folder / "runs"),
        "nats": {"url": nats_url},
        "model": {"folder": "base", "max_model_len": 256},
        "rollout": {"batch": WAIT, "limits": {"generate": WAIT, "episode_tokens": 64}},
        "learner": {
            "steps": STEPS,
            "row_tokens": 64,
            "rows_per_microbatch": 4,
            "weights_dtype": "float32",
            "proof_tolerance": 1e-4,
            "optimizer": {"learning_rate": 1e-2},
            "lora": {"rank": 4, "alpha": 8},
        },
        "actor": {"port": free_port(), "dtype": "float32", "health_every": 0.5},
    }
    config = resolve(tree)
    write_model(config.path / "base", seed=0)
    file = folder / "lora.yaml"
    file.write_text(json.dumps(tree))
    verbs = [
        subprocess.Popen([ROOT / "bin" / verb, "--config", file], env=compiled_once(folder))
        for verb in ("actor", "learner")
    ]
    actor, learner = verbs
    try:
        versions, served, logs = trio.run(play, config, folder / "exported", learner)
    finally:
        for process in verbs:
            process.terminate()
            process.wait(60)
    return Run(config, file, versions, served, logs)


def compiled_once(folder: Path) -> dict[str, str]:
    """The environment of learners that share what they compile."""
    cache = {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    return os.environ | cache


async def play(config: Config, exported: Path, learner: subprocess.Popen):
    """Roll out every step; returns the announced versions, the actor's status at each, and the exported log."""
    with trio.fail_after(WAIT):
        async with connect(config.nats, config.run) as bus:
            served = [await proven(bus, 0)]
            async with ActorPool.on_bus(bus, config) as pool:
                for step in range(STEPS):
                    await pool.require(step)
                    await roll_out(bus, pool, step)
                    served.append(await proven(bus, step + 1))
            while learner.poll() is None:
                await trio.sleep(0.1)
            return await bus.policies(), served, await log.export(bus, exported)


async def proven(bus: Bus, version: int) -> ActorStatus:
    while True:
        for status in await bus.actors():
            if status.serving and status.version == version:
                return status
        await trio.sleep(0.05)


async def roll_out(bus: Bus, pool: ActorPool, step: int) -> None:
    rewards = [float(sample % 2) for sample in range(SAMPLES)]
    groups = []
    for group in range(GROUPS):
        ids = tuple(TrajectoryId(bus.run, step, group, sample) for sample in range(SAMPLES))
        for id, reward in zip(ids, rewards, strict=True):
            await bus.publish_trajectory(await sample(pool, id, reward))
        groups.append(GroupRecord(group, f"task-{group}", ids, tuple(rewards), "trained"))
    count = GROUPS * SAMPLES
    await bus.publish_batch(Batch(bus.run, step, step, SAMPLES, tuple(groups), Ledger(count, trained=count), "full"))


async def sample(pool: ActorPool, id: TrajectoryId, reward: float) -> Trajectory:
    prompt = [7 + 3 * i % 301 + id.group for i in range(20)]
    request = GenerateRequest(prompt, TOKENS, Sampling(), (), f"{id.group}.{id.sample}", seed=id.sample)
    generated = await pool.generate(request)
    mask = [0] * len(prompt) + [1] * TOKENS
    return Trajectory(
        id=id,
        task=f"task-{id.group}",
        domain="tiny",
        family="none",
        policy_version=id.step,
        messages=(),
        verdict=Verdict(reward),
        finish="done",
        tokens=TokenArrays.pack([*prompt, *generated.ids], mask, generated.logprobs, generated.versions),
    )


def test_every_adapter_was_proven_on_the_live_server(run: Run) -> None:
    assert [(v.version, v.form, v.onto) for v in run.versions] == [
        (0, "full", None),
        *[(version, "adapter", 0) for version in range(1, STEPS + 1)],
    ]
    assert len({v.whole["model.safetensors"] for v in run.versions[1:]}) == STEPS
    proofs = [status.proof for status in run.served]
    print("proofs:", ", ".join(f"{proof:.2e}" for proof in proofs))
    assert max(proofs) < 1e-5


def test_the_actor_served_what_the_adapter_makes_of_the_base(run: Run) -> None:
    """By a model that shares no code with either, of the merged matrices as anyone would compute them."""
    last = run.versions[-1]
    base = load_file(run.config.path / "base" / "model.safetensors")
    adapter = load_file(Path(last.folder) / "adapter_model.safetensors")
    moved = 0
    for name in [name for name in adapter if name.endswith(".lora_A.weight")]:
        module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        term = 2.0 * adapter[name.replace("lora_A", "lora_B")] @ adapter[name]
        base[f"{module}.weight"] = base[f"{module}.weight"] + term
        moved += bool(term.any())
    assert moved == 2 * 7
    merged = run.config.path / "merged"
    write_model(merged, seed=0)
    save_file(base, merged / "model.safetensors")
    ids = np.frombuffer(last.probe.ids, "<i4")
    expected = reference_logprobs(merged, ids.tolist())
    np.testing.assert_allclose(np.frombuffer(last.probe.logprobs, "<f4"), expected, atol=1e-4)
    before = reference_logprobs(run.config.path / "base", ids.tolist())
    assert np.abs(before - expected).mean() > 1e-2, "nothing was learnt, so nothing was compared"


def test_a_replay_of_the_log_reaches_the_same_adapter_bit_for_bit(run: Run, tmp_path: Path) -> None:
    base = tmp_path / run.config.run / "base"
    base.mkdir(parents=True)
    for file in (run.config.path / "base").iterdir():
        (base / file.name).write_bytes(file.read_bytes())
    learner = [ROOT / "bin" / "learner", "--config", run.file, "--set", f"folder={tmp_path}", "--replay", *run.logs]
    subprocess.run(learner, check=True, timeout=WAIT, env=compiled_once(run.file.parent))
    last = run.versions[-1]
    again = tmp_path / run.config.run / "weights" / Path(last.folder).name
    for name in last.sha256:
        assert (again / name).read_bytes() == (Path(last.folder) / name).read_bytes(), name
