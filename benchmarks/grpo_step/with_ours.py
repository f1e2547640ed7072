"""The step of this project: packed rows, the head in chunks, and layers computed again as ``learner.remat`` says."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from measure import WARM, measured, report, resident

from learner.mesh import make_mesh
from learner.models.huggingface import load_params, param_shapes, read_config
from learner.packing import Stream, pack
from learner.step import Step
from protocol.config import Learner

IMPORTED = resident()


def main(folder: Path, steps: int, remat: str) -> None:
    model = read_config(folder / "model", remat=remat)
    work = np.load(folder / "work.npz")
    rows, length = work["ids"].shape
    sampled = np.arange(length - work["behaviour"].shape[1], length)
    streams = [
        Stream(ids, sampled, np.full(len(sampled), advantage, np.float32), behaviour)
        for ids, advantage, behaviour in zip(work["ids"], work["advantages"], work["behaviour"], strict=True)
    ]
    learner = Learner(steps=1000, row_tokens=length, rows_per_microbatch=rows, remat=remat)
    step = Step(model, learner, make_mesh("1x1"), param_shapes(model))
    state = step.init(load_params(model, folder / "model", step.params))
    batches = pack(streams, learner.row_tokens, learner.rows_per_microbatch)
    first = {}

    def run(count: int) -> None:
        nonlocal state
        for _ in range(count):
            state, metrics = step.update(state, batches)
            first.setdefault("loss", metrics["loss"])
            first.setdefault("grad_norm", metrics["grad_norm"])

    run(WARM)
    report(**measured(steps, run), imported=IMPORTED, **first)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
