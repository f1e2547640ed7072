"""What a push of new weights costs, whole and as what changed, at a learning rate of 1e-6.

A model of SmolLM2-135M's sizes takes AdamW updates on GRPO's loss, in float32; each is pushed in bfloat16 to a live
vLLM server on this machine's CPU, by the learner's own store and the actor's own sidecar. The cycle is timed from the
first byte that the learner writes until the actor serves the version, proven. Against it: a plain copy of the complete
file, made durable. In the end a server that was started on the complete files of the last version is asked for the
digest of every parameter that it holds and for the probe's log-probabilities: the live one must say the same.

How many bfloat16 values change depends on their magnitude. Without ``--folder`` (a Hugging Face folder of real weights)
they are random with a deviation of 0.15, where SmolLM2-135M's own matrices have 0.14 to 0.28.

Run: ``bin/_python engine benchmarks/push.py [--updates 10] [--folder DIR]``.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import jax
import numpy as np
from cyclopts import App
from rich.console import Console
from rich.table import Table

from learner.mesh import make_mesh
from learner.models.family import ModelConfig
from learner.models.huggingface import load_params, param_shapes, read_config
from learner.packing import Stream, one_shape
from learner.step import PROBE_TOKENS, State, Step
from learner.weights import WeightStore, write_tensors
from protocol.config import Config, resolve
from protocol.records import ActorStatus, PolicyVersion, Probe
from protocol.server import free_port
from rollout_engine.actors.control import ServerControl
from rollout_engine.actors.server import ROOT, VllmServer
from rollout_engine.actors.sidecar import Sidecar

app = App(help=__doc__)
console = Console()

SIZES = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DEVIATION = 0.15
LONGEST = 300
"""Seconds until a version is served, the server's start included."""
ROWS, TOKENS = 4, 64
"""Of an update: enough for a gradient to every parameter."""


@dataclass
class Push:
    """One version's way to the actor, in seconds and bytes."""

    form: str
    size: int
    written: float
    """Seconds that the learner took."""
    served: float
    """Until the actor served it, from its announcement on."""
    changed: float | None = None
    """Share of the bfloat16 values that are other than the version before's."""


class LocalBus:
    """The sidecar's bus, within this process."""

    def __init__(self) -> None:
        self._policy: PolicyVersion | None = None
        self._status: ActorStatus | None = None
        self._served: int | None = None
        self._changed = asyncio.Condition()

    async def announce(self, version: PolicyVersion) -> None:
        async with self._changed:
            self._policy = version
            self._changed.notify_all()

    async def policy(self) -> PolicyVersion | None:
        return self._policy

    async def wait_policy(self, version: int) -> PolicyVersion:
        async with self._changed:
            await self._changed.wait_for(lambda: self._policy is not None and self._policy.version >= version)
            return self._policy

    async def put_actor(self, status: ActorStatus) -> None:
        async with self._changed:
            self._status, self._served = status, status.version if status.serving else None
            self._changed.notify_all()

    async def serves(self, version: int) -> None:
        """Wait until the actor does; raises RuntimeError with what it says of itself where that takes too long."""
        try:
            async with asyncio.timeout(LONGEST), self._changed:
                await self._changed.wait_for(lambda: self._served == version)
        except TimeoutError:
            raise RuntimeError(f"version {version} is not served after {LONGEST} s: {self._status}") from None


class Run:
    """The learner's side: a state, its updates, its pushes."""

    def __init__(self, config: Config, base: Path, full_every: int):
        self.config, self.base = config, base
        self.model = read_config(base, remat="none")
        shapes = param_shapes(self.model)
        self.step = Step(self.model, config.learner, make_mesh("1x1"), shapes)
        self.state: State = self.step.init(load_params(self.model, base, self.step.params))
        self.store = WeightStore(config.path / "weights", base, "bfloat16", keep=2, full_every=full_every)
        self.rng = np.random.default_rng(0)
        self.probe_ids = self.rng.integers(0, self.model.vocab_size, PROBE_TOKENS, np.int32)

    def update(self) -> None:
        """One of GRPO's: sampled tokens of a few sequences, each with its advantage."""
        streams = []
        for advantage in self.rng.normal(size=ROWS):
            sampled = np.arange(TOKENS // 2, TOKENS)
            weights = np.full(len(sampled), advantage, np.float32)
            ids = self.rng.integers(0, self.model.vocab_size, TOKENS, np.int32)
            streams.append(Stream(ids, sampled, weights, self.behaviour(ids)[sampled - 1]))
        self.state, measured = self.step.update(self.state, [one_shape(streams, TOKENS, ROWS)])
        assert measured["applied"] == 1.0, measured

    def behaviour(self, ids: np.ndarray) -> np.ndarray:
        return self.step.probe(self.state.params, ids, "bfloat16")

    def probe(self) -> Probe:
        logprobs = self.behaviour(self.probe_ids).astype("<f4")
        return Probe(self.probe_ids.astype("<i4").tobytes(), logprobs.tobytes(), self.config.learner.proof_tolerance)


@app.default
def main(*, updates: int = 10, folder: Path | None = None) -> None:
    """Push version 0 whole, ``updates`` versions as what changed, and as many again whole, all to one server."""
    jax.config.update("jax_platforms", "cpu")
    with tempfile.TemporaryDirectory(prefix="endstate-push-") as scratch:
        asyncio.run(_measure(Path(scratch), updates, folder))


async def _measure(scratch: Path, updates: int, folder: Path | None) -> None:
    base = scratch / "base"
    _make_base(base, folder)
    config = _config(scratch)
    run = Run(config, base, full_every=updates + 1)
    bus = LocalBus()
    async with httpx.AsyncClient(trust_env=False) as client:
        server = VllmServer(config, scratch / "vllm.log", str(ROOT / ".venv/actor/bin/python"))
        control = ServerControl(server.url, client, 60.0)
        sidecar = Sidecar("one", config, bus, control, server, lambda text: None)
        task = asyncio.create_task(sidecar.run())
        try:
            await _push(run, bus, 0)
            pushes, before = [], _values(run)
            for version in range(1, updates + 1):
                await asyncio.to_thread(run.update)
                push = await _push(run, bus, version)
                push.changed, before = _changed(before, after := _values(run)), after
                pushes.append(push)
                console.print(_line(version, push), highlight=False)
            held = await _holds(server, client), await control.logprobs(run.probe_ids, 60.0)
            complete = WeightStore(scratch / "complete", base, "bfloat16", keep=1)
            whole = []
            for version in range(updates + 1, updates + 4):
                run.store.full_every = 1
                whole.append(await _push(run, bus, version))
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        last = Path(complete.write(config.run, updates, run.state.params, run.probe()).folder)
        fresh = await _fresh(config, scratch, last, run.probe_ids, client)
    file = last / "model.safetensors"
    copies = [_copied(file, scratch / "copy") for _ in range(3)]
    _report(pushes, whole, copies, file.stat().st_size, held, fresh)


def _make_base(base: Path, folder: Path | None) -> ModelConfig:
    """Real weights, or random ones of SmolLM2-135M's sizes."""
    base.mkdir()
    if folder is not None:
        shutil.copytree(folder, base, dirs_exist_ok=True)
        return read_config(base)
    (base / "config.json").write_text(json.dumps(SIZES))
    model = read_config(base)
    rng = np.random.default_rng(0)

    def draw(shape) -> np.ndarray:
        normal = rng.standard_normal(shape.shape, np.float32) * np.float32(DEVIATION)
        return normal if len(shape.shape) - (len(shape.shape) > 2) >= 2 else np.abs(normal) + 0.5

    params = jax.tree.map(lambda shape: jax.numpy.asarray(draw(shape)), param_shapes(model))
    write_tensors(base / "model.safetensors", model, params, "float32")
    return model


def _config(scratch: Path) -> Config:
    return resolve(
        {
            "run": "push",
            "folder": str(scratch / "runs"),
            "model": {"folder": str(scratch / "base"), "max_model_len": 256},
            "actor": {
                "port": free_port(),
                "dtype": "float32",
                "max_num_seqs": 4,
                "health_every": 0.2,
                "health_failures": 100,
                "extra_args": ["--worker-extension-cls=benchmarks.push_worker.Digests"],
            },
            "learner": {"row_tokens": 1024, "optimizer": {"learning_rate": 1e-6}, "proof_tolerance": 1e-3},
        }
    )


async def _push(run: Run, bus: LocalBus, version: int) -> Push:
    probe = await asyncio.to_thread(run.probe)
    began = time.monotonic()
    record = await asyncio.to_thread(run.store.write, run.config.run, version, run.state.params, probe)
    written = time.monotonic()
    await bus.announce(record)
    await bus.serves(version)
    size = sum((Path(record.folder) / name).stat().st_size for name in record.sha256)
    return Push(record.form, size, written - began, time.monotonic() - written)


def _values(run: Run) -> list[np.ndarray]:
    """Every parameter as pushed, as bits."""
    return [np.asarray(x.astype("bfloat16")).view(np.uint16) for x in jax.tree.leaves(run.state.params)]


def _changed(before: list[np.ndarray], after: list[np.ndarray]) -> float:
    return sum(int((a != b).sum()) for a, b in zip(before, after, strict=True)) / sum(a.size for a in after)


async def _holds(server: VllmServer, client: httpx.AsyncClient) -> dict[str, str]:
    body = {"method": "parameter_digests", "args": [], "kwargs": {}}
    answer = await client.post(f"{server.url}/collective_rpc", json=body, timeout=60.0)
    (digests,) = answer.raise_for_status().json()["results"]
    return digests


async def _fresh(config: Config, scratch: Path, folder: Path, ids: np.ndarray, client: httpx.AsyncClient):
    server = VllmServer(config, scratch / "fresh.log", str(ROOT / ".venv/actor/bin/python"))
    await server.start(folder)
    try:
        return await _holds(server, client), await ServerControl(server.url, client, 60.0).logprobs(ids, 60.0)
    finally:
        await server.stop()


def _copied(file: Path, place: Path) -> float:
    began = time.monotonic()
    with file.open("rb") as source, place.open("wb") as target:
        shutil.copyfileobj(source, target, 2**24)
        target.flush()
        os.fsync(target.fileno())
    took = time.monotonic() - began
    place.unlink()
    return took


def _line(version: int, push: Push) -> str:
    return (
        f"version {version}: {100 * push.changed:.2f}% of values changed, {push.size / 1e6:.2f} MB; "
        f"{push.written:.2f} s to write, {push.served:.2f} s until served"
    )


def _report(pushes, whole, copies, size, held, fresh) -> None:
    table = Table("", "MB", "of full", "learner s", "actor s", "cycle s", title=f"a version of {size / 1e6:.1f} MB")
    for name, rows in (("what changed", pushes), ("whole", whole)):
        sizes = [row.size for row in rows]
        columns = [statistics.median(values) for values in ([r.written for r in rows], [r.served for r in rows])]
        cycle = statistics.median(row.written + row.served for row in rows)
        table.add_row(
            f"{name}, median of {len(rows)}",
            f"{statistics.mean(sizes) / 1e6:.2f}",
            f"{100 * statistics.mean(sizes) / size:.2f}%",
            *(f"{value:.2f}" for value in (*columns, cycle)),
        )
    table.add_row(
        f"plain copy, median of {len(copies)}", f"{size / 1e6:.2f}", "", "", "", f"{statistics.median(copies):.2f}"
    )
    console.print(table)
    differ = [name for name in held[0].keys() | fresh[0].keys() if held[0].get(name) != fresh[0].get(name)]
    console.print(
        f"the live server against one started on the complete files: {len(differ)} of {len(fresh[0])} tensors differ; "
        f"log-probabilities differ by {np.abs(held[1] - fresh[1]).max():g} at most",
        highlight=False,
    )
    if differ or (held[1] != fresh[1]).any():
        raise SystemExit(1)


if __name__ == "__main__":
    app()
