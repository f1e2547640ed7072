"""A campaign at the terminal: every task so many times, onto a file of attempts, with a bar.

Invariant: running a finished campaign again opens no actor and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from protocol.config import Config
from rollout_engine.actors.scripted import Script, oracle_scripts
from rollout_engine.circuit import OutageStatus
from rollout_engine.cli.options import Player, split_urls
from rollout_engine.cli.outages import OutageLines
from rollout_engine.engine import open_runner
from rollout_engine.environments.environment import AnyTask
from rollout_engine.errors import ConfigurationError
from rollout_engine.evaluation.attempts import AttemptFile, AttemptRow, PolicyStamp, good_rows, weights_digest
from rollout_engine.evaluation.files import transcripts_file
from rollout_engine.evaluation.repeats import missing_keys, run_attempts
from rollout_engine.evaluation.transcripts import open_transcripts, write_transcript
from rollout_engine.gate import Gate

_LINES = 20
"""A campaign's lines of progress where no bar can be drawn."""


Players = Sequence[str] | Mapping[str, Script]
"""Who plays: actors by their URLs, or scripts by task id."""


def players(policy: Player, actors: Sequence[str], config: Config, tasks: Sequence[AnyTask]) -> Players:
    """Who plays ``tasks``: the actors, or the oracle, which knows each task's own solution."""
    if policy == "oracle":
        if actors:
            raise ConfigurationError("--policy oracle plays the tasks' own solutions: leave --actors out")
        return oracle_scripts(tasks)
    return actor_urls(actors, config)


def actor_urls(actors: Sequence[str], config: Config) -> list[str]:
    """Where to find a policy: the URLs of ``--actors``, else the configuration's, else its own server's."""
    return split_urls(actors) or list(config.actor.urls) or [f"http://{config.actor.host}:{config.actor.port}"]


def stamp(label: str, version: int, weights: Path | None) -> PolicyStamp:
    """The policy that a campaign measures; ``weights``: its model folder, to keep a digest of."""
    return PolicyStamp(label, version, weights_digest(weights) if weights else "")


async def run_campaign(
    config: Config,
    tasks: Sequence[AnyTask],
    attempts: int,
    path: Path,
    policy: PolicyStamp,
    who: Players,
    scope: str,
    console: Console,
) -> list[AttemptRow]:
    """Run what ``path`` lacks of ``tasks`` x ``attempts``; every row of the file, error rows included."""
    with AttemptFile(path, policy) as file:
        missing = missing_keys(tasks, attempts, file.done)
        done = f"{len(file.rows)} attempts are in {path}" if file.rows else f"attempts go into {path}"
        console.print(f"{scope}: {done}, {len(missing)} to run", highlight=False, soft_wrap=True)
        if not missing:
            return file.rows
        total = len(tasks) * attempts
        tally = _Tally(len(file.rows), sum(row.passed for row in file.rows), [])
        async with open_runner(config, who, policy.version, attempts) as runner:
            with _bar(console) as progress, open_transcripts(transcripts_file(path)) as transcripts:
                bar = progress.add_task(scope, total=total, completed=total - len(missing), note="")

                def record(row: AttemptRow) -> None:
                    file.append(row)
                    tally.add(row)
                    progress.update(bar, advance=1, note=f"{tally}  {outages}")
                    ran = int(progress.tasks[bar].completed)
                    if not console.is_terminal and ran % max(1, total // _LINES) == 0:
                        console.print(f"{scope}: {ran}/{total}  {tally}", highlight=False, soft_wrap=True)

                def say(line: str) -> None:
                    console.print(f"{scope}: {line}", highlight=False, soft_wrap=True)

                outages = OutageLines(say, steady=not console.is_terminal)

                async def changed(statuses: list[OutageStatus]) -> None:
                    outages.tell(statuses)
                    progress.update(bar, note=f"{tally}  {outages}")

                await run_attempts(
                    tasks,
                    attempts,
                    partial(runner, scope=scope),
                    config.evaluation.concurrency,
                    file.done,
                    config.rollout.retries,
                    record,
                    gate=Gate(config.rollout.outage, changed, len(tasks)),
                    policy=policy,
                    on_trajectory=lambda trajectory, key: write_transcript(transcripts, key, trajectory),
                )
        return file.rows + tally.failed


async def check_campaign(
    config: Config,
    tasks: Sequence[AnyTask],
    attempts: int,
    path: Path,
    policy: PolicyStamp,
    who: Players,
    scope: str,
    console: Console,
) -> None:
    """What a dry run can check: the file is a campaign of this policy, and the actors answer."""
    missing = missing_keys(tasks, attempts, {row.key for row in good_rows(path, policy)})
    async with open_runner(config, who, policy.version, attempts):
        pass
    console.print(
        f"{scope}: {len(tasks)} tasks × {attempts} attempts onto {path}, {len(missing)} to run; the actors answer",
        highlight=False,
        soft_wrap=True,
    )


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:<10}"),
        BarColumn(bar_width=40),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
    )


@dataclass
class _Tally:
    """What the bar says beside the count."""

    graded: int
    passed: int
    failed: list[AttemptRow]

    def add(self, row: AttemptRow) -> None:
        if row.error is not None:
            self.failed.append(row)
        else:
            self.graded += 1
            self.passed += row.passed

    def __str__(self) -> str:
        rate = f"pass rate {self.passed / self.graded:.3f}" if self.graded else ""
        return f"{rate}  [yellow]{len(self.failed)} system errors[/]" if self.failed else rate
