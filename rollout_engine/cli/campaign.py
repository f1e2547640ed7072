"""A campaign at the terminal: every task so many times, onto a file of attempts, with a bar.

Invariant: running a finished campaign again opens no actor and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from protocol.config import Config
from protocol.records import Trajectory
from rollout_engine.engine import open_runner
from rollout_engine.environments.task import Task
from rollout_engine.evaluation.attempts import AttemptFile, AttemptRow, Key, PolicyStamp, weights_digest
from rollout_engine.evaluation.files import transcripts_file
from rollout_engine.evaluation.repeats import missing_keys, run_attempts
from rollout_engine.evaluation.transcripts import open_transcripts, write_transcript


def split_urls(actors: Sequence[str], config: Config) -> list[str]:
    """URLs from ``--actors A,B`` or ``--actors A B``; without any, the configuration's, or its own server's."""
    urls = [url for item in actors for url in item.split(",") if url]
    return urls or list(config.actor.urls) or [f"http://127.0.0.1:{config.actor.port}"]


def stamp(label: str, version: int, weights: Path | None) -> PolicyStamp:
    """The policy that a campaign measures; ``weights``: its model folder, to keep a digest of."""
    return PolicyStamp(label, version, weights_digest(weights) if weights else "")


async def run_campaign(
    config: Config,
    tasks: Sequence[Task],
    attempts: int,
    path: Path,
    policy: PolicyStamp,
    urls: Sequence[str],
    scope: str,
    console: Console,
) -> list[AttemptRow]:
    """Run what ``path`` lacks of ``tasks`` x ``attempts``; every row of the file, error rows included."""
    with AttemptFile(path, policy) as file:
        missing = missing_keys(tasks, attempts, file.done)
        console.print(f"{scope}: {len(file.rows)} attempts are in {path}, {len(missing)} to run", highlight=False)
        if not missing:
            return file.rows
        failed: list[AttemptRow] = []
        with _bar(console) as progress, open_transcripts(transcripts_file(path)) as transcripts:
            total = len(tasks) * attempts
            bar = progress.add_task(scope, total=total, completed=total - len(missing), note="")

            def keep(trajectory: Trajectory, key: Key) -> None:
                write_transcript(transcripts, key, trajectory)

            def record(row: AttemptRow) -> None:
                file.append(row)
                if row.error is not None:
                    failed.append(row)
                progress.update(bar, advance=1, note=_note(file.rows, failed))

            async with open_runner(config, urls, policy.version) as runner:
                await run_attempts(
                    tasks,
                    attempts,
                    partial(runner, scope=scope),
                    config.evaluation.concurrency,
                    file.done,
                    config.rollout.sample_retries,
                    record,
                    policy=policy,
                    backoff=config.rollout.retry_backoff,
                    on_trajectory=keep,
                )
        return file.rows + failed


async def check_campaign(
    config: Config,
    tasks: Sequence[Task],
    attempts: int,
    path: Path,
    policy: PolicyStamp,
    urls: Sequence[str],
    scope: str,
    console: Console,
) -> None:
    """What a dry run can check: the file is a campaign of this policy, and the actors answer."""
    with AttemptFile(path, policy) as file:
        missing = missing_keys(tasks, attempts, file.done)
    async with open_runner(config, urls, policy.version):
        pass
    console.print(
        f"{scope}: {len(tasks)} tasks × {attempts} attempts onto {path}, {len(missing)} to run; the actors answer",
        highlight=False,
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


def _note(rows: Sequence[AttemptRow], failed: Sequence[AttemptRow]) -> str:
    rate = f"pass rate {sum(row.passed for row in rows) / len(rows):.3f}" if rows else ""
    return f"{rate}  [yellow]{len(failed)} system errors[/]" if failed else rate
