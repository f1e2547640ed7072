"""Trajectories of real shape, packed against padded to the longest: real tokens a CPU second of one update's gradients.

Lengths are log-normal between 200 and 20,000 tokens (median 2,500), two fifths of each sampled. The models are small,
dense (Qwen3) and hybrid (Qwen3.5), with a row of 20,480 tokens a microbatch and float32, so that an update takes a CPU
half a minute. Padded, each trajectory has a row of the longest's length for itself; such rows are alike, and two of
them are timed for all. Both ways give the same gradients, which the tests of the step check.

Run: ``bin/_python engine benchmarks/real_shapes.py [--trajectories 64]``.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter

import jax
import numpy as np

from benchmarks.gpu.ladder import LADDERS
from learner.layout import Layout, efficiency, plan
from learner.mesh import make_mesh
from learner.models.families import FAMILIES
from learner.models.huggingface import init_params, param_shapes
from learner.packing import Microbatch, Stream, build
from learner.step import Step
from protocol.config import Learner

SHORTEST, MEDIAN, LONGEST, SIGMA, SAMPLED = 200, 2_500, 20_000, 1.1, 0.4
ROW = 20_480
TIMED = 2


def streams(count: int, vocabulary: int) -> list[Stream]:
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(MEDIAN), SIGMA, count), SHORTEST, LONGEST).astype(int)
    out = []
    for length in lengths:
        sampled = np.sort(rng.choice(np.arange(1, length), int(SAMPLED * length), replace=False))
        weights = np.full(len(sampled), rng.choice([-1.0, 1.0]), np.float32)
        behaviour = np.full(len(sampled), -np.log(vocabulary), np.float32)
        out.append(Stream(rng.integers(0, vocabulary, length, np.int32), sampled, weights, behaviour))
    return out


def cpu_seconds(step: Step, params, batches: list[Microbatch]) -> float:
    """Of gradients alone, compiled before."""
    shapes = {batch.ids.shape + batch.valid.shape: batch for batch in batches}
    jax.block_until_ready(step.gradients(params, list(shapes.values())))
    started = time.process_time()
    jax.block_until_ready(step.gradients(params, batches))
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=64)
    count = parser.parse_args().trajectories
    for family, models in LADDERS["tiny"].models.items():
        ((_, sizes), *_) = models.items()
        model = FAMILIES[sizes["model_type"]].read(sizes)
        learner = Learner(row_tokens=ROW, rows_per_microbatch=1)
        step = Step(model, learner, make_mesh("1x1"), param_shapes(model))
        params = jax.device_put(init_params(model, jax.random.key(0)), step.params)
        learned = streams(count, model.vocab_size)
        lengths, sampled = [len(s.ids) for s in learned], [len(s.sampled) for s in learned]

        layouts = plan(lengths, sampled, ROW, 1, work=model.work())
        packed = cpu_seconds(step, params, [build(layout, learned) for layout in layouts])

        most = max(sampled)
        rows = [build(Layout(ROW, most, ((i,),)), learned) for i in range(count)]
        padded = cpu_seconds(step, params, rows[:TIMED]) * count / TIMED

        shapes = Counter((len(x.rows), x.tokens, x.places) for x in layouts)
        real, alone = sum(lengths), sum(lengths) / (count * ROW)
        print(f"{family}: {count} trajectories of {min(lengths)} to {max(lengths)} tokens, {real} together")
        print(f"  packed  {real / packed:10,.0f} tokens a CPU second   efficiency {efficiency(layouts, lengths):.3f}")
        print(f"  padded  {real / padded:10,.0f} tokens a CPU second   efficiency {alone:.3f}")
        print(f"  packed is {padded / packed:.1f} times as fast; microbatches by rows, tokens, places: {dict(shapes)}")


if __name__ == "__main__":
    main()
