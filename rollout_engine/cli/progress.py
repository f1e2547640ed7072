"""The engine's terminal: one bar for the run, one for the step in progress, a line for what is worth keeping.

Beside the step's bar stands what is going on: the pass rate, what the batch still waits for, retries, how many episodes
the actors bear at once where that is fewer than configured, and an outage while there is one. Lines stay: the pool's
difficulty when it has changed, every wave after a step's first, outages, and each finished step with its ledger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from protocol.config import Config
from protocol.records import Batch, Ledger, Trajectory, TrajectoryId
from rollout_engine.batch import BatchState
from rollout_engine.circuit import OutageStatus
from rollout_engine.cli.outages import MESSAGE, OutageLines
from rollout_engine.errors import EpisodeSystemError
from rollout_engine.group import GroupResult


class StepDisplay:
    """Implements :class:`rollout_engine.progress.StepProgress` with rich. ``limit``: episodes that may run at once."""

    def __init__(self, config: Config, console: Console, limit: Callable[[], int] | None = None):
        self._config = config
        self._limit = limit or (lambda: config.rollout.concurrency)
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
        self._number = 0
        self._rewards: list[float] = []
        self._errors: Counter[str] = Counter()
        self._outages = OutageLines(
            lambda line: self._say(f"step {self._number:>3}  {line}"), steady=not console.is_terminal
        )
        self._filled = ""
        self._pool: Mapping[str, int] = {}

    def __enter__(self) -> StepDisplay:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def step(self, step: int) -> None:
        rollout = self._config.rollout
        self._number, self._rewards, self._errors, self._filled = step, [], Counter(), ""
        self._progress.update(self._run, completed=step)
        self._progress.reset(
            self._step,
            description=f"episodes of step {step}",
            total=rollout.groups * rollout.group_size,
            note="waiting for the policy",
        )

    def pool(self, histogram: Mapping[str, int]) -> None:
        if histogram != self._pool:
            self._pool = histogram
            self._say(f"step {self._number:>3}  pool: " + bands(histogram))

    def wave(self, groups: int, state: BatchState) -> None:
        self._count(state)
        if state.waves > 1:
            self._say(
                f"step {self._number:>3}  wave {state.waves}: {groups} more groups, "
                f"{state.informative} of {self._config.rollout.groups} informative so far"
            )

    def episode(self, trajectory: Trajectory) -> None:
        self._rewards.append(trajectory.reward)
        self._progress.update(self._step, advance=1)
        self._note()

    def failed(self, id: TrajectoryId, error: EpisodeSystemError, again: float | None) -> None:
        self._errors[error.kind] += 1
        if again is None:
            self._say(
                f"step {id.step:>3}  [yellow]group {id.group} stays incomplete[/]: sample {id.sample} is out of "
                f"retries, the last error {error.kind}: {escape(str(error)[:MESSAGE])}"
            )
        self._note()

    def outage(self, outages: Sequence[OutageStatus]) -> None:
        self._outages.tell(outages)
        self._note()

    def group(self, result: GroupResult, state: BatchState) -> None:
        self._count(state)

    def batch(self, batch: Batch) -> None:
        groups = sum(group.bucket == "trained" for group in batch.groups)
        mean = sum(self._rewards) / max(1, len(self._rewards))
        self._progress.update(self._run, completed=batch.step + 1)
        self._say(
            f"step {batch.step:>3}  pass rate {mean:.3f}  groups {groups}/{len(batch.groups)} informative"
            + (f" in {batch.waves} waves" if batch.waves > 1 else "")
            + f"  {ledger_line(batch.ledger)}  {batch.seconds:.1f} s"
            + (f"  [yellow]short batch, at rollout.{batch.bound}[/]" if batch.outcome == "short" else "")
        )

    def _count(self, state: BatchState) -> None:
        rollout = self._config.rollout
        self._filled = f"{state.informative}/{rollout.groups} groups"
        self._progress.update(self._step, total=state.launched * rollout.group_size)
        self._note()

    def _note(self) -> None:
        parts = [self._filled] if self._filled else []
        if self._rewards:
            parts.append(f"pass rate {sum(self._rewards) / len(self._rewards):.2f}")
        if self._errors:
            kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self._errors.items()))
            parts.append(f"[yellow]retried: {kinds}[/]")
        limit = self._limit()
        if limit < self._config.rollout.concurrency:
            parts.append(f"{limit} at once, as the actors bear")
        parts.append(str(self._outages))
        self._progress.update(self._step, note="  ".join(filter(None, parts)))

    def _say(self, line: str) -> None:
        self._console.print(line, highlight=False, soft_wrap=True)


def bands(histogram: Mapping[str, int]) -> str:
    """The pool by difficulty, hardest first, bands without a task left out."""
    return ", ".join(f"{count} {band.replace('_', ' ')}" for band, count in histogram.items() if count)


def ledger_line(ledger: Ledger) -> str:
    """Where every episode ended, as a sum. The buckets that are rarely filled are named only when they are."""
    terms = [f"{ledger.trained} trained", f"{ledger.zero_variance} zero-variance", f"{ledger.surplus} surplus"]
    terms += [f"{count} system errors ({kind})" for kind, count in ledger.system_error.items()]
    terms += [f"{ledger.cancelled} cancelled"] if ledger.cancelled else []
    carried = f" + {ledger.carried} carried over" if ledger.carried else ""
    return f"episodes {ledger.started}{carried} = " + " + ".join(terms)
