"""Three learner processes of eight virtual devices each, the reference topology in small: a tiny model over a
hand-made log, under ``--mesh 3x8``.

    bin/_python engine benchmarks/many_processes.py

shows that the loss, each leaf's gradient and five updates equal one device's within 1e-5 of their norm; that after
kill -9 of each process in turn, in mid-step, all end within ``learner.process_timeout``; that a process which was
frozen ends as well when it goes on; and that each resumed run is bit-equal to one that nobody disturbed. Exits with 1
where one of these doesn't hold.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from rich.console import Console

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/learner"))

PROCESSES, DEVICES, STEPS, BOUND = 3, 8, 5, 10.0
TOLERANCE = 1e-5
SIZES = {"rows_per_microbatch": 3, "row_tokens": 128, "checkpoint_every": 2, "process_timeout": BOUND}
console = Console(width=120, highlight=False)


def gradients(folder: Path, coordinator: str | None, process: int) -> None:
    """Write the loss and the gradients of the first step to ``folder``: what each of the processes runs."""
    import jax

    from learner.batches import LogBatches
    from learner.mesh import make_mesh, replicated
    from learner.models.huggingface import load_params, param_shapes
    from learner.processes import Place, join, together
    from learner.share import share
    from learner.step import Step
    from learner.train import read_model
    from protocol.config import load

    place = Place(coordinator, PROCESSES, process) if coordinator else None
    config = load(folder / "config.yaml")
    if place:
        join(place, config.learner)
    with together(place, config.learner):
        model = read_model(config)
        mesh, shapes = make_mesh(config.learner.mesh), param_shapes(model)
        step = Step(model, config.learner, mesh, shapes)
        params = load_params(model, config.path / "base", step.params)
        part = share(LogBatches([folder / "log.jsonl"]).next(0), 0, config.rollout, config.learner, mesh, model.work())
        grads, sums, tokens = step.gradients(params, part.microbatches, part.totals)
        grads = jax.jit(lambda x: x, out_shardings=replicated(mesh))(grads)
        if process == 0:
            named = {
                jax.tree_util.keystr(path): np.asarray(x) for path, x in jax.tree_util.tree_leaves_with_path(grads)
            }
            np.savez(folder / "gradients.npz", loss=float(sums.loss) / tokens, **named)


def apart(one: np.ndarray, other: np.ndarray) -> float:
    """Their difference, relative to the first one's norm."""
    return float(np.linalg.norm(one - other) / max(np.linalg.norm(one), 1e-30))


def main() -> int:
    import jax
    from many import finish, metrics, prepare, start

    from learner.models.huggingface import load_params
    from learner.train import read_model

    failures: list[str] = []

    def show(what: str, holds: bool) -> None:
        console.print(f"{'ok  ' if holds else 'FAIL'}  {what}")
        if not holds:
            failures.append(what)

    def weights(config, version: int) -> np.ndarray:
        params = load_params(read_model(config), config.path / f"weights/v{version:06d}")
        return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(params)])

    def whole(folder: Path, processes: int, devices: int) -> None:
        for code, printed in finish(start(folder, processes, devices)):
            if code:
                raise SystemExit(printed)

    with tempfile.TemporaryDirectory() as scratch:
        os.environ["JAX_COMPILATION_CACHE_DIR"] = f"{scratch}/compiled"
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        alone_at, many_at = Path(scratch, "alone"), Path(scratch, "many")
        alone = prepare(alone_at, STEPS, **SIZES)
        many = prepare(many_at, STEPS, mesh=f"{PROCESSES}x{DEVICES}", **SIZES)
        for folder, count, devices in ((alone_at, 1, 1), (many_at, PROCESSES, DEVICES)):
            for code, printed in finish(start(folder, count, devices, "benchmarks.many_processes")):
                if code:
                    raise SystemExit(printed)
        one, other = (np.load(folder / "gradients.npz") for folder in (alone_at, many_at))
        worst = max(apart(one[name], other[name]) for name in one.files)
        show(
            f"loss and gradients of {len(one.files) - 1} leaves: at most {worst:.1e} from one device's",
            worst <= TOLERANCE,
        )

        whole(alone_at, 1, 1)
        began = time.monotonic()
        whole(many_at, PROCESSES, DEVICES)
        straight = time.monotonic() - began
        worst = max(apart(weights(alone, v), weights(many, v)) for v in range(STEPS + 1))
        show(f"{STEPS} updates: at most {worst:.1e} from one device's", worst <= TOLERANCE)
        losses = [[row["loss"] for row in metrics(config)] for config in (alone, many)]
        worst = max(abs(a - b) / abs(a) for a, b in zip(*losses, strict=True))
        show(
            f"loss of each step: at most {worst:.1e} from one device's; the run took {straight:.0f} s",
            worst <= TOLERANCE,
        )

        for victim, how in [*((i, signal.SIGKILL) for i in range(PROCESSES)), (1, signal.SIGSTOP)]:
            folder = Path(scratch, f"{how.name}-{victim}")
            config = prepare(folder, STEPS, mesh=f"{PROCESSES}x{DEVICES}", **SIZES)
            processes = start(folder, PROCESSES, DEVICES)
            if not any(line.startswith("step 3/") for line in processes[0].stdout):
                raise SystemExit("they ended before step 3")
            processes[victim].send_signal(how)
            began = time.monotonic()
            for process in processes:
                if process is not processes[victim]:
                    process.wait(6 * BOUND)
            took = time.monotonic() - began
            processes[victim].send_signal(signal.SIGCONT)
            ended = finish(processes)
            codes = [code for code, _ in ended]
            show(f"{how.name} of process {victim}: the others end within {took:.1f} s, codes {codes}", took <= BOUND)
            show("  all of them with a code that isn't 0", all(codes))
            for i, (_, printed) in enumerate(ended):
                said = [
                    line for line in printed.splitlines() if "ends with another one" in line or "another task" in line
                ]
                if i != victim:
                    console.print(f"      process {i}: {said[-1] if said else printed[-200:]}", soft_wrap=True)
                    show(f"  process {i} says why", bool(said))
            whole(folder, PROCESSES, DEVICES)
            show("  the resumed run is bit-equal", np.array_equal(weights(many, STEPS), weights(config, STEPS)))
    return 1 if failures else 0


if __name__ == "__main__":
    if "--config" in sys.argv:
        given = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
        gradients(Path(given["--config"]).parent, given.get("--coordinator"), int(given.get("--process", 0)))
    else:
        argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
        sys.exit(main())
