"""What a run prints and keeps of each step: one terminal line, one JSON line, TensorBoard scalars.

Invariant: ``metrics.jsonl`` holds each step once. A learner restored at step s drops the lines of s and later,
which it is about to compute again.
"""

from __future__ import annotations

import json
import time
from datetime import timedelta
from pathlib import Path

from rich.console import Console
from tensorboardX import SummaryWriter


class Metrics:
    def __init__(self, folder: Path, restored_step: int, total_steps: int, console: Console):
        self.path, self.total, self.console = folder / "metrics.jsonl", total_steps, console
        self.first, self.began = restored_step, time.monotonic()
        kept = self.path.read_text().splitlines() if self.path.exists() else []
        kept = [line for line in kept if _step(line) < restored_step]
        beside = self.path.with_name(".metrics.jsonl.part")
        beside.write_text("".join(f"{line}\n" for line in kept))
        beside.replace(self.path)
        self.board = SummaryWriter(str(folder / "tensorboard"), purge_step=restored_step, flush_secs=10)

    def write(self, step: int, values: dict[str, float]) -> None:
        with open(self.path, "a") as stream:
            stream.write(json.dumps({"step": step, **values}) + "\n")
        for name, value in values.items():
            self.board.add_scalar(name, value, step)
        shown = [f"step {step + 1}/{self.total}", f"reward {values['reward_mean']:.3f}"]
        shown.append(f"groups {values['informative_groups']:.0f}/{values['groups']:.0f}")
        if values["applied"]:
            shown += [
                f"loss {values['loss']:+.4f}",
                f"grad {values['grad_norm']:.3f}",
                f"entropy {values['entropy']:.4f}",
                f"learner-actor {values['behaviour_difference']:.4f}",
            ]
        else:
            shown.append("no update: " + ("gradient not finite" if "grad_norm" in values else "no advantage"))
        if values["staleness_max"]:
            shown.append(f"stale by {values['staleness_mean']:.2f}")
        shown += [f"tokens {values['sampled_tokens']:.0f}", f"{values['seconds']:.1f} s", self._left(step)]
        self.console.print("  ".join(shown), highlight=False, soft_wrap=True)

    def _left(self, step: int) -> str:
        """Time to the last step at the pace so far, waiting for batches included."""
        pace = (time.monotonic() - self.began) / (step + 1 - self.first)
        return f"{timedelta(seconds=round(pace * (self.total - step - 1)))} left"

    def close(self) -> None:
        self.board.close()


def _step(line: str) -> float:
    # A line cut by a kill is dropped with the step it belongs to.
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError):
        return float("inf")
