"""The learner on one accelerator, in under eight minutes: kernels against plain JAX, and updates of the largest models
that fit.

Kernels: what ``auto`` chooses for bfloat16, against plain JAX in float32 (relative errors of output and gradients) and
against plain JAX in bfloat16 (time, forward and backward). Updates: of a hybrid and a dense ladder of published sizes
the largest that fits the device, with rows of one trajectory of 16k or 64k tokens and a loss at every token, Adam in
device memory or in ``pinned_host``; tokens a second, and the model FLOPs utilisation

    MFU = model FLOPs of the update / (its seconds x the device's peak)

(PaLM, arXiv 2204.02311, appendix B), whose numerator is :func:`learner.dry_run.model_flops`: 6 FLOPs a multiply-add of
forward; what is computed again isn't counted, nor what a causal mask throws away, which makes it smaller than PaLM's.
Peaks are the makers' for dense bfloat16 (``PEAKS``).

What fits is found without crashing: an estimate skips what can't, then the real programs are compiled ahead of time
and must fit by the compiler's own figures. Each part runs in a process of its own with a bound on its time; one that
fails is reported and the next begins. Results are written after each part.

Run: ``bin/_python engine -m benchmarks.gpu [--out FOLDER] [--budget SECONDS]``, on a host whose JAX sees the
accelerator (``pip install "jax[cuda13]"``, and jax-linear-attention for its kernels). ``--ladder tiny`` is for a CPU:
it takes a minute and shows that the script works.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.gpu.ladder import LADDERS

SLACK = 2.0
"""A part may take so many times its even share of the time that is left."""


class Part(NamedTuple):
    name: str
    module: str
    arguments: tuple[str, ...]


def parts(ladder: str) -> list[Part]:
    """The most telling first: whatever the time runs out on, comes last."""
    lengths, families = LADDERS[ladder].lengths, LADDERS[ladder].models
    out = [Part("kernels", "benchmarks.gpu.kernels", (str(lengths[0]),))]
    for memory in ("device", "pinned_host"):
        for tokens in lengths:
            for family in families:
                name = f"{family} {tokens} {memory}"
                out.append(Part(name, "benchmarks.gpu.update", (ladder, family, str(tokens), memory)))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")), help="folder of gpu.json")
    parser.add_argument("--budget", type=float, default=450.0, help="seconds for all parts")
    parser.add_argument("--ladder", choices=LADDERS, default="full")
    arguments = parser.parse_args()
    results = run(arguments.out / "gpu.json", parts(arguments.ladder), arguments.budget)
    sys.exit(any("error" in found for found in results.values()))


def run(path: Path, todo: list[Part], budget: float) -> dict[str, dict]:
    """{part: its figures, or {"error": what ended it}}, also written to ``path`` as they come."""
    deadline, results = time.monotonic() + budget, {}
    path.parent.mkdir(parents=True, exist_ok=True)  # at once, not when the first part has spent its minutes
    with tempfile.TemporaryDirectory(prefix="endstate-gpu-") as cache:
        settings = {
            "JAX_COMPILATION_CACHE_DIR": cache,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.94",
        }
        for i, part in enumerate(todo):
            left = max(0.0, deadline - time.monotonic())
            limit = min(left, SLACK * left / (len(todo) - i))
            results[part.name] = found = _run(part, limit, {**settings, **os.environ})
            path.write_text(json.dumps(results, indent=1))
            print(f"{part.name:28} {_line(found)}", flush=True)
    return results


def _run(part: Part, limit: float, environment: dict[str, str]) -> dict:
    command = [sys.executable, "-m", part.module, *part.arguments]
    started = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, env=environment)
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {limit:.0f} s"}
    took = {"part_seconds": round(time.monotonic() - started, 1)}
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-6:] or [f"ended with {done.returncode}"]
        return {"error": "\n".join(reason), **took}
    return {**json.loads(done.stdout.strip().rpartition("\n")[2]), **took}


def _line(found: dict) -> str:
    """A part's figures for people."""
    if "error" in found:
        return "FAILED: " + found["error"].splitlines()[-1][:200]
    if "operations" in found:
        return "  ".join(
            f"{name} {of['kernel']} {of['milliseconds']:.2f} ms (plain {of['plain_milliseconds']:.2f}), "
            f"errors {of['output']:.1e} {of['gradient']:.1e}"
            for name, of in found["operations"].items()
        )
    columns = [
        f"{found['model']:12} {found['parameters'] / 1e9:6.2f}B",
        f"{found['tokens_a_second']:10,.0f} tokens/s",
        "" if found["utilisation"] is None else f"{found['utilisation']:6.1%} of peak",
        f"{found['bytes'] / 1e9:6.1f} GB of {found['capacity'] / 1e9:.1f}",
        f"microbatch {found['microbatch_seconds']:.2f} s, rest {found['rest_seconds']:.2f} s",
        f"compiled in {found['compile_seconds']:.0f} s",
    ]
    return "  ".join(columns)


if __name__ == "__main__":
    main()
