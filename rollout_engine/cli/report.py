"""``bin/report``: the base and the trained policy over the same tasks: a table, ``report.json`` and an HTML page.

Refuses campaigns with gaps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import trio
from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape

from protocol import config as configuration
from protocol import log
from protocol.bus import BusError, connect
from protocol.cli.verb import ConfigOption, SetOption, verb
from protocol.config import Config
from protocol.records import Batch
from rollout_engine.cli.failures import exit_on_known_fault
from rollout_engine.cli.options import RepeatOption, TasksOption
from rollout_engine.curation.pool import read_pool
from rollout_engine.errors import ConfigurationError
from rollout_engine.evaluation import files
from rollout_engine.evaluation.attempts import AttemptRow, read_rows
from rollout_engine.evaluation.coverage import check_coverage
from rollout_engine.evaluation.page import PageInputs, render_page
from rollout_engine.evaluation.report import Report, build_report, write_report
from rollout_engine.evaluation.tables import family_table, headline_table
from rollout_engine.evaluation.tasks import checked_repeat, evaluated_tasks
from rollout_engine.evaluation.training import read_metrics
from rollout_engine.evaluation.transcripts import Transcript, choose_failures, read_transcripts

app = verb("report", __doc__)
console = Console()


@app.default
def report(
    *,
    config: ConfigOption,
    tasks: TasksOption = "heldout",
    repeat: RepeatOption = None,
    base: Annotated[Path | None, Parameter(help="Attempts of the base policy; RUN/evaluation/base.jsonl.")] = None,
    trained: Annotated[Path | None, Parameter(help="Of the trained one; RUN/evaluation/trained.jsonl.")] = None,
    logs: Annotated[
        tuple[Path, ...], Parameter(consume_multiple=True, help="Exported logs, for the ledger; RUN/log, or NATS.")
    ] = (),
    set: SetOption = (),
) -> None:
    """Write both files into the run's folder and print the tables."""
    with exit_on_known_fault("report"):
        resolved = configuration.load(config, set)
        before = base or files.evaluation_file(resolved, "base")
        after = trained or files.evaluation_file(resolved, "trained")
        ids = [task.id for task in evaluated_tasks(resolved, tasks)]
        attempts = checked_repeat(resolved, repeat)
        rows = [_campaign(path, ids, attempts) for path in (before, after)]
        seconds = _seconds(files.seconds_file(resolved))
        made = build_report(resolved.run, *rows, seconds, resolved.evaluation.token_price)
        failures = _failures(rows[1], after, made)
        page = render_page(_inputs(resolved, made, failures, trio.run(_batches, resolved, logs)))
        write_report(made, files.report_file(resolved))
        files.page_file(resolved).write_text(page, encoding="utf-8")
        console.print(headline_table(made))
        console.print(family_table(made))
        console.print(f"{files.report_file(resolved)}\n{files.page_file(resolved)}", highlight=False, soft_wrap=True)


def _campaign(path: Path, tasks: list[str], attempts: int) -> list[AttemptRow]:
    rows = read_rows(path)
    if not rows:
        raise ConfigurationError(f"{path} holds no attempt: run bin/evaluate --label {path.stem} first")
    check_coverage(rows, tasks, attempts).require(str(path))
    return rows


def _seconds(path: Path) -> dict[str, float]:
    if not path.exists():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, float])
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"{path} must map stages to seconds: {error}") from error


def _failures(rows: list[AttemptRow], path: Path, made: Report) -> list[Transcript]:
    keys = choose_failures(rows, {fall["family"] for fall in made["families_fallen"]})
    return read_transcripts(files.transcripts_file(path), keys)


async def _batches(config: Config, logs: tuple[Path, ...]) -> list[Batch]:
    """Batches of exported logs, or, without any, of the run's log on NATS when a server answers."""
    exported = files.log_folder(config)
    if logs or exported.exists():
        return list(log.read(logs or [exported]).batches.values())
    try:
        async with connect(config.nats, config.run, create=False) as bus:
            found = [await bus.batch(step) for step in range(config.learner.steps)]
    except BusError as error:
        console.print(f"[yellow]report:[/] no ledger on the page: {escape(str(error))}")
        return []
    return [batch for batch in found if batch is not None]


def _inputs(config: Config, made: Report, failures: list[Transcript], batches: list[Batch]) -> PageInputs:
    pool = files.pool_file(config)
    return PageInputs(
        report=made,
        fingerprint=config.fingerprint(),
        pool=read_pool(pool) if pool.exists() else None,
        metrics=read_metrics(files.metrics_file(config)),
        batches=batches,
        failures=failures,
    )


if __name__ == "__main__":
    app()
