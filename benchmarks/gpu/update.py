"""Part of :mod:`benchmarks.gpu`: updates of the largest model of a ladder that fits the device.

Invariant: nothing is allocated for a model before its programs were compiled and fit, by the compiler's figures,
beside what lives between them.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from typing import NamedTuple

import jax
import numpy as np

from benchmarks.gpu.ladder import LADDERS
from learner.dry_run import lower, model_flops
from learner.mesh import make_mesh
from learner.models.families import FAMILIES
from learner.models.family import ModelConfig
from learner.models.huggingface import init_params, param_shapes
from learner.packing import Stream, pack
from learner.step import Step
from protocol.config import ConfigError, Learner, Optimizer

PEAKS = {
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
    "NVIDIA A100": 312e12,
    "NVIDIA B200": 2250e12,
}
"""Dense bfloat16 FLOPs a second by the makers' data sheets, by how the device's name begins; the first that fits."""
MARGIN = 0.97
"""Of the device's memory: the rest is for what no program's figures hold, such as the libraries' own workspace."""
HOST_SHARE = 0.6
"""Of the host's memory that offloaded state may take."""
CPU_BYTES = 2 * 10**9
"""What a CPU, which has no limit of its own, is taken to have."""


class Fitting(NamedTuple):
    name: str
    model: ModelConfig
    step: Step
    bytes: int
    compile_seconds: float
    refused: dict[str, str]
    """Larger ones, and why not."""


def main(ladder: str, family: str, tokens: int, memory: str) -> None:
    device = jax.devices()[0]
    capacity = (device.memory_stats() or {}).get("bytes_limit", CPU_BYTES)
    learner = Learner(
        row_tokens=tokens,
        rows_per_microbatch=1,
        logprob_chunk=min(tokens, 2048),
        compute_dtype="bfloat16",
        optimizer=Optimizer(memory=memory),
    )
    found = largest(LADDERS[ladder].models[family], learner, MARGIN * capacity)
    microbatches = max(1, LADDERS[ladder].update // tokens)
    times = timed(found, learner, microbatches)
    flops = microbatches * model_flops(found.model, 1, tokens)
    peak = next((peak for name, peak in PEAKS.items() if device.device_kind.startswith(name)), None)
    print(
        json.dumps(
            {
                "device": device.device_kind,
                "capacity": capacity,
                "model": found.name,
                "parameters": parameters(found.model),
                "bytes": found.bytes,
                "refused": found.refused,
                "compile_seconds": found.compile_seconds,
                "microbatches": microbatches,
                **times,
                "tokens_a_second": microbatches * tokens / times["update_seconds"],
                "model_flops": flops,
                "utilisation": peak and flops / times["update_seconds"] / peak,
            }
        )
    )


def largest(models: dict[str, dict], learner: Learner, room: float) -> Fitting:
    """Of ``models``, smallest first, the last whose update fits ``room`` bytes; raises :class:`ConfigError` if none."""
    refused = {}
    for name, sizes in reversed(models.items()):
        model = FAMILIES[sizes["model_type"]].read(sizes, compute_dtype=learner.compute_dtype, remat=learner.remat)
        if reason := too_large(model, learner, room):
            refused[name] = reason
            continue
        step = Step(model, learner, make_mesh(learner.mesh), param_shapes(model))
        started = time.perf_counter()
        try:
            need = compiled_bytes(step, learner, model)
        except jax.errors.JaxRuntimeError as error:  # the compiler itself found no way to fit it
            refused[name] = str(error).splitlines()[0][:200]
            continue
        if need <= room:
            return Fitting(name, model, step, need, time.perf_counter() - started, refused)
        refused[name] = f"compiled, it needs {need / 1e9:.1f} GB"
    raise ConfigError(f"none fits {room / 1e9:.1f} GB: {refused}")


def parameters(model: ModelConfig) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(param_shapes(model)))


def too_large(model: ModelConfig, learner: Learner, room: float) -> str | None:
    """Why ``model`` can't fit, by a bound from below: parameters, compute copy, gradients, Adam's moments, and the
    residual stream before every layer."""
    count, offloaded = parameters(model), learner.optimizer.memory == "pinned_host"
    stream = model.num_hidden_layers * learner.row_tokens * model.hidden_size * 2
    least = count * (4 + 2 + 4 + (0 if offloaded else 8)) + stream
    if least > room:
        return f"it needs at least {least / 1e9:.1f} GB"
    host = HOST_SHARE * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if offloaded and 8 * count > host:
        return f"its moments need {8 * count / 1e9:.1f} GB of host memory"
    return None


def compiled_bytes(step: Step, learner: Learner, model: ModelConfig) -> int:
    """The most that is on the device at a time in an update: a program's arguments, results and temporaries, and what
    lives on beside them."""
    shapes = param_shapes(model)
    kept = {name: 0 for name in ("copy", "accumulate", "apply")}
    state = step.abstract_state(shapes)
    # Parameters (where they aren't what is computed with) and moments, while gradients are accumulated.
    kept["accumulate"] = on_device(state.optimizer) + (0 if step.copy.same else on_device(state.params))
    kept["copy"] = on_device(state.optimizer)
    most = 0
    for name, program in lower(step, learner, shapes).items():
        if name in kept and not (name == "copy" and step.copy.same):
            memory = program.compile().memory_analysis()
            results = memory.output_size_in_bytes - memory.alias_size_in_bytes
            most = max(most, memory.argument_size_in_bytes + results + memory.temp_size_in_bytes + kept[name])
    return most


def on_device(tree) -> int:
    leaves = [leaf for leaf in jax.tree.leaves(tree) if leaf.sharding.memory_kind != "pinned_host"]
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)


def timed(found: Fitting, learner: Learner, microbatches: int) -> dict[str, float]:
    """Seconds of an update, of one of its microbatches, and of the rest (the compute copy, applying the gradients), all
    after one update to warm up."""
    step, model = found.step, found.model
    rng = np.random.default_rng(0)
    ids = rng.integers(0, model.vocab_size, learner.row_tokens, np.int32)
    sampled = np.arange(1, len(ids))
    guess = np.full(len(sampled), -math.log(model.vocab_size), np.float32)
    stream = Stream(ids, sampled, rng.choice([-1.0, 1.0], len(sampled)).astype(np.float32), guess)
    (batch,) = pack([stream], learner.row_tokens, 1)

    make = jax.jit(lambda key: init_params(model, key), out_shardings=step.params)
    state = step.init(make(jax.random.key(0)))
    state, _ = step.update(state, [batch])
    jax.block_until_ready(state)
    started = time.perf_counter()
    state, metrics = step.update(state, [batch] * microbatches)
    jax.block_until_ready(state)
    update = time.perf_counter() - started
    if not metrics["applied"]:
        raise RuntimeError(f"the update was not applied: {metrics}")

    both = []
    for count in (1, 2):
        started = time.perf_counter()
        jax.block_until_ready(step.gradients(state.params, [batch] * count))
        both.append(time.perf_counter() - started)
    microbatch = both[1] - both[0]
    rest = max(0.0, update - microbatches * microbatch)
    return {"update_seconds": update, "microbatch_seconds": microbatch, "rest_seconds": rest}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
