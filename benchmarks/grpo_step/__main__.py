"""One GRPO step on the same work: ours against google-tunix and TRL, in CPU seconds and peak memory.

The work is a Qwen3 of 4 layers, width 256 (MLP 768, 4 query and 2 key heads of 64), vocabulary 32,768 with an untied
head, float32, and 8 trajectories of 64 prompt and 192 sampled tokens. All three read the same safetensors, ids,
advantages and behaviour log-probabilities, take the same clipped loss as a token mean and clip the same norm for
AdamW; that their losses and gradient norms agree is checked. Each learner runs its own trainer with its defaults but
for that, in a process of its own, which makes a few steps to compile and warm up and is then measured; rounds take
turns, and medians are shown. Peak memory is the process's, imports and compilation included.

``ours`` computes each layer again in the backward pass, as it does by default; ``kept`` keeps all of them
(``learner.remat: none``).

The peers live outside this project, each in an environment of its own:

    python3.11 -m venv TUNIX && TUNIX/bin/pip install google-tunix==0.1.7
    python3.11 -m venv TRL && TRL/bin/pip install trl==1.16.0 torch==2.13.0+cpu

Run: ``bin/_python engine benchmarks/grpo_step --tunix TUNIX/bin/python --trl TRL/bin/python [--rounds 3]``; a peer
that isn't named is left out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

HERE = Path(__file__).parent
TOLERANCE = 1e-4
"""Relative, between learners, of the first step's loss and gradient norm."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tunix", help="the Python of an environment with google-tunix")
    parser.add_argument("--trl", help="the Python of an environment with TRL")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8, help="measured steps of a round")
    arguments = parser.parse_args()
    learners = {
        "ours": (sys.executable, "with_ours.py", "layer"),
        "kept": (sys.executable, "with_ours.py", "none"),
        "tunix": (arguments.tunix, "with_tunix.py"),
        "trl": (arguments.trl, "with_trl.py"),
    }
    learners = {name: command for name, command in learners.items() if command[0]}
    found: dict[str, list[dict]] = {name: [] for name in learners}
    with tempfile.TemporaryDirectory(prefix="grpo-step-") as folder:
        _run(sys.executable, "work.py", folder)
        for turn in range(arguments.rounds):
            for name, (python, script, *how) in learners.items():
                line = _run(python, script, folder, str(arguments.steps), *how)
                found[name].append(json.loads(line))
                print(f"round {turn + 1}  {name:6}  {line}", flush=True)
    _check(found)
    _table(found)


def _run(python: str, script: str, *arguments: str) -> str:
    """The last line that ``script`` prints."""
    command = [python, str(HERE / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return done.stdout.strip().rpartition("\n")[2]


def _check(found: dict[str, list[dict]]) -> None:
    ours = found["ours"][0]
    for name, rounds in found.items():
        for fact in ("loss", "grad_norm"):
            difference = abs(rounds[0][fact] / ours[fact] - 1)
            if not difference <= TOLERANCE:
                sys.exit(f"{name} has {fact} {rounds[0][fact]} and ours {ours[fact]}: they don't do the same work")


def _table(found: dict[str, list[dict]]) -> None:
    def middle(name: str, fact: str) -> float:
        return median(one[fact] for one in found[name])

    print(f"\n{'learner':8}{'step s':>9}{'CPU s':>9}{'peak GB':>9}{'imported GB':>13}{'loss':>12}{'grad norm':>12}")
    for name, rounds in found.items():
        figures = [middle(name, fact) for fact in ("seconds", "cpu", "peak", "imported")]
        print(
            f"{name:8}{figures[0]:9.3f}{figures[1]:9.3f}{figures[2] / 1e9:9.2f}{figures[3] / 1e9:13.2f}"
            f"{rounds[0]['loss']:12.6f}{rounds[0]['grad_norm']:12.6f}"
        )
    for name in found:
        if name not in ("ours", "kept"):
            cpu, peak = (middle("ours", fact) / middle(name, fact) for fact in ("cpu", "peak"))
            print(f"ours is {cpu:.2f} times {name}'s CPU and {peak:.2f} times its peak memory")


if __name__ == "__main__":
    main()
