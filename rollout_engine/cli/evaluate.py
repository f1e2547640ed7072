"""``bin/evaluate``: every task K times with one policy, and its figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import trio
from cyclopts import App, Parameter
from rich.console import Console

from protocol import config as configuration
from protocol.config import Config
from rollout_engine.cli.campaign import check_campaign, run_campaign, split_urls, stamp
from rollout_engine.cli.failures import exit_on_known_fault
from rollout_engine.curation.candidates import heldout_tasks, training_candidates
from rollout_engine.curation.pool import read_pool
from rollout_engine.environments.task import Task
from rollout_engine.errors import ConfigurationError
from rollout_engine.evaluation.attempts import PolicyStamp
from rollout_engine.evaluation.coverage import check_coverage
from rollout_engine.evaluation.files import evaluation_file
from rollout_engine.evaluation.report import campaign_figures
from rollout_engine.evaluation.tables import campaign_table

app = App(name="evaluate", help=__doc__)
console = Console()

TasksOption = Annotated[str, Parameter(help="heldout, train, or a file: pool.json, or task ids one a line.")]
RepeatOption = Annotated[int | None, Parameter(help="Attempts a task; evaluation.repeat by default.")]


@app.default
def evaluate(
    *,
    config: Annotated[Path, Parameter(help="The run's YAML file.")],
    tasks: TasksOption = "heldout",
    repeat: RepeatOption = None,
    actors: Annotated[
        tuple[str, ...], Parameter(consume_multiple=True, help="URLs of actors, separated by commas or blanks.")
    ] = (),
    out: Annotated[Path | None, Parameter(help="File of attempts; RUN/evaluation/LABEL.jsonl by default.")] = None,
    label: Annotated[str, Parameter(help="What to call the policy that the actors serve.")] = "base",
    version: Annotated[int, Parameter(help="Its policy version.")] = 0,
    weights: Annotated[Path | None, Parameter(help="Its model folder, to keep a digest with every row.")] = None,
    set: Annotated[tuple[str, ...], Parameter(help="KEY.PATH=VALUE, may be repeated.")] = (),
    dry_run: Annotated[bool, Parameter(help="Print the resolved configuration, check what can be checked.")] = False,
) -> None:
    """Run REPEAT attempts of every task; a rerun runs what is missing or failed.

    Prints figures only when every task has each attempt exactly once, with a verdict.
    """
    with exit_on_known_fault("evaluate"):
        resolved = configuration.load(config, set)
        if dry_run:
            console.print(configuration.dump(resolved), markup=False, highlight=False)
        chosen = evaluated_tasks(resolved, tasks)
        attempts = checked_repeat(resolved, repeat)
        path = out or evaluation_file(resolved, label)
        policy = stamp(label, version, weights)
        trio.run(_evaluate, resolved, chosen, attempts, path, policy, split_urls(actors, resolved), dry_run)


async def _evaluate(
    config: Config, tasks: list[Task], attempts: int, path: Path, policy: PolicyStamp, urls: list[str], dry_run: bool
) -> None:
    if dry_run:
        await check_campaign(config, tasks, attempts, path, policy, urls, policy.label, console)
        return
    rows = await run_campaign(config, tasks, attempts, path, policy, urls, policy.label, console)
    check_coverage(rows, [task.id for task in tasks], attempts).require(str(path))
    console.print(campaign_table(campaign_figures(rows, config.evaluation.token_price)))


def checked_repeat(config: Config, repeat: int | None) -> int:
    """Attempts a task; raises :class:`ConfigurationError` for less than one."""
    attempts = config.evaluation.repeat if repeat is None else repeat
    if attempts < 1:
        raise ConfigurationError(f"--repeat is {attempts}: a task is attempted at least once")
    return attempts


def evaluated_tasks(config: Config, which: str) -> list[Task]:
    """Tasks that ``--tasks`` names: ``heldout``, ``train``, or those of a file.

    Raises :class:`ConfigurationError` for a file that can't be read, is empty or names an unknown task.
    """
    if which == "heldout":
        return heldout_tasks(config)
    if which == "train":
        return training_candidates(config)
    path = Path(which)
    if not path.is_file():
        raise ConfigurationError(f"--tasks is {which!r}: use heldout, train, or a file of task ids")
    ids = read_pool(path).tasks if path.suffix == ".json" else path.read_text().split()
    by_id = {task.id: task for task in [*training_candidates(config), *heldout_tasks(config)]}
    if not ids:
        raise ConfigurationError(f"{path} names no task")
    if unknown := [id for id in ids if id not in by_id]:
        raise ConfigurationError(
            f"{path} names {unknown[0]}, which this configuration doesn't generate: check tasks.* and seed"
        )
    return [by_id[id] for id in dict.fromkeys(ids)]


if __name__ == "__main__":
    app()
