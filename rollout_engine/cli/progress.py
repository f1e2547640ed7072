"""The engine's terminal: one bar for the run, one for the step in progress, a line a finished step."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from protocol.config import Config
from protocol.records import Batch, Trajectory
from rollout_engine.batch import BatchState
from rollout_engine.group import GroupResult


class StepDisplay:
    """Implements :class:`rollout_engine.engine.StepProgress` with rich."""

    def __init__(self, config: Config, console: Console):
        self._config = config
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description:<28}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
        )
        self._run = self._progress.add_task("updates", total=config.learner.steps, note="")
        self._step = self._progress.add_task("episodes", total=None, note="")
        self._rewards: list[float] = []

    def __enter__(self) -> StepDisplay:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def step(self, step: int) -> None:
        rollout = self._config.rollout
        self._rewards = []
        self._progress.update(self._run, completed=step)
        self._progress.reset(
            self._step,
            description=f"episodes of step {step}",
            total=rollout.groups * rollout.group_size,
            note="waiting for the policy",
        )

    def episode(self, trajectory: Trajectory) -> None:
        self._rewards.append(trajectory.reward)
        mean = sum(self._rewards) / len(self._rewards)
        self._progress.update(self._step, advance=1, note=f"pass rate {mean:.2f}")

    def group(self, result: GroupResult, state: BatchState) -> None:
        groups = state.launched + state.needed
        self._progress.update(self._step, total=groups * self._config.rollout.group_size)

    def batch(self, batch: Batch) -> None:
        ledger = batch.ledger
        groups = sum(group.bucket == "trained" for group in batch.groups)
        mean = sum(self._rewards) / max(1, len(self._rewards))
        errors = sum(ledger.system_error.values())
        self._progress.update(self._run, completed=batch.step + 1)
        self._console.print(
            f"step {batch.step:>3}  pass rate {mean:.3f}  groups {groups}/{len(batch.groups)} informative  "
            f"episodes {ledger.started} = {ledger.trained} trained + {ledger.zero_variance} zero-variance + "
            f"{ledger.surplus} surplus + {errors} system errors  {batch.seconds:.1f} s"
            + ("  [yellow]short batch[/]" if batch.outcome == "short" else ""),
            highlight=False,
            soft_wrap=True,
        )
