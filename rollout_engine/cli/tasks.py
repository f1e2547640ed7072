"""``bin/tasks``: list, show, export and check the tasks that an agent is trained and measured on."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Annotated, Literal

import trio
from cyclopts import Parameter
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from protocol import config as configuration
from protocol.cli.verb import ConfigOption, SetOption, verb
from protocol.records import ToolCall, Trajectory
from rollout_engine.cli.failures import exit_on_known_fault
from rollout_engine.cli.options import TasksOption
from rollout_engine.environments.backend import replay
from rollout_engine.environments.registry import DOMAINS, domain, find_task, generate, read_tasks
from rollout_engine.environments.rules import check_disjoint, check_split, check_task
from rollout_engine.environments.task import Say, Split, Task, Turn, to_data
from rollout_engine.errors import ConfigurationError
from rollout_engine.evaluation.tasks import evaluated_tasks
from rollout_engine.evaluation.verification import Finding, solved
from rollout_engine.evaluation.verification import verify as verify_tasks
from rollout_engine.grading.diff import compare, explain

app = verb("tasks", __doc__)
console = Console()

SPLITS: tuple[Split, ...] = ("train", "heldout")

DomainsOption = Annotated[tuple[str, ...], Parameter(help="Domains; all by default.", consume_multiple=True)]
SplitOption = Annotated[Literal["train", "heldout", "both"], Parameter(help="Which split.")]
CountOption = Annotated[int, Parameter(help="Tasks a split, spread evenly over the families.")]
SeedOption = Annotated[int, Parameter(help="The run's seed.")]
FileOption = Annotated[Path | None, Parameter(help="A task file instead of the generators.")]


@app.command
def check(
    *,
    domains: DomainsOption = DOMAINS,
    split: SplitOption = "both",
    count: CountOption = 160,
    seed: SeedOption = 0,
    file: FileOption = None,
) -> None:
    """Check that oracles pass, that doing nothing, a missing call and every slip fail, and that splits are disjoint."""
    with exit_on_known_fault("tasks"):
        if file:
            tasks = read_tasks(file)
        else:
            tasks = _generated(domains, split, count, seed)
        faults = _faults(tasks, generated=file is None)
        console.print(_summary(tasks, faults))
        if faults:
            for fault in faults.values():
                console.print(fault, markup=False, highlight=False, soft_wrap=True)
            raise ConfigurationError(f"{len(faults)} of {len(tasks)} tasks can't be used")
        console.print(f"{len(tasks)} tasks are sound")


@app.command
def verify(
    *,
    config: ConfigOption,
    tasks: TasksOption = "heldout",
    concurrency: Annotated[int | None, Parameter(help="Episodes at once; evaluation.concurrency by default.")] = None,
    set: SetOption = (),
) -> None:
    """Play each task of a run through the whole engine twice: its own solution must pass, doing nothing must not.

    Tasks that tell no solution of their own are named and left out. The exit status is 0 where all others are sound,
    and 2 where there are no others.
    """
    with exit_on_known_fault("tasks"):
        resolved = configuration.load(config, set)
        chosen, silent = solved(evaluated_tasks(resolved, tasks))
        for task in silent:
            told = f"{task.id}: not verified: it tells no solution of its own"
            console.print(told, markup=False, highlight=False, soft_wrap=True)
        if not chosen:
            raise ConfigurationError(f"none of {len(silent)} tasks tells a solution of its own: nothing to verify")
        with Progress(console=console) as progress:
            bar = progress.add_task("episodes", total=2 * len(chosen))
            findings = trio.run(
                verify_tasks,
                resolved,
                chosen,
                concurrency or resolved.evaluation.concurrency,
                partial(progress.advance, bar),
            )
        console.print(_findings(findings))
        faults = [finding.fault for finding in findings if finding.fault]
        for fault in faults:
            console.print(fault, markup=False, highlight=False, soft_wrap=True)
        if faults:
            raise ConfigurationError(f"{len(faults)} of {len(chosen)} tasks don't tell right from wrong")
        left_out = f"; {len(silent)} not verified, for want of a solution" if silent else ""
        console.print(f"{len(chosen)} tasks are sound{left_out}", soft_wrap=True)


@app.command(name="list")
def list_tasks(
    *,
    domains: DomainsOption = DOMAINS,
    split: SplitOption = "both",
    count: CountOption = 40,
    seed: SeedOption = 0,
    file: FileOption = None,
) -> None:
    """Print each task's id and opening."""
    with exit_on_known_fault("tasks"):
        for task in read_tasks(file) if file else _generated(domains, split, count, seed):
            print(task.id, task.opening, sep="\t")


@app.command
def show(
    id: Annotated[str, Parameter(help="The task, as bin/tasks list prints it.")], *, file: FileOption = None
) -> None:
    """Print a task: what the user says and knows, its rows, the oracle, the changes it must leave, the slips."""
    with exit_on_known_fault("tasks"):
        _show(_in_file(id, file) if file else find_task(id))


@app.command
def export(
    *,
    domains: DomainsOption = DOMAINS,
    split: SplitOption = "both",
    count: CountOption = 40,
    seed: SeedOption = 0,
) -> None:
    """Print tasks as a JSON array: a task file to edit and to check with --file."""
    with exit_on_known_fault("tasks"):
        json.dump([to_data(task) for task in _generated(domains, split, count, seed)], sys.stdout, indent=1)
        print()


def _generated(domains: Sequence[str], split: str, count: int, seed: int) -> list[Task]:
    splits = SPLITS if split == "both" else (split,)
    return [task for part in splits for task in generate(domains, part, count, seed)]


def _in_file(id: str, file: Path) -> Task:
    for task in read_tasks(file):
        if task.id == id:
            return task
    raise ConfigurationError(f"{file} has no task {id!r}")


def _faults(tasks: Sequence[Task], generated: bool) -> dict[str, str]:
    """What is wrong, by task id. What concerns several tasks is raised at once."""
    if generated:
        check_split(tasks)
    by_split = {split: [task for task in tasks if task.split == split] for split in SPLITS}
    check_disjoint(by_split["train"], by_split["heldout"])
    faults = {}
    for task in tasks:
        try:
            check_task(domain(task.domain), task)
        except ConfigurationError as error:
            faults[task.id] = str(error)
    return faults


def _summary(tasks: Sequence[Task], faults: dict[str, str]) -> Table:
    """A row a family: median turns, mean tool calls, the share that asks the user first."""
    table = Table()
    table.add_column("family", no_wrap=True)
    for heading in ("tasks", "turns", "calls", "asks", "slips", "faults"):
        table.add_column(heading, justify="right")
    families: dict[tuple[str, str], list[Task]] = {}
    for task in tasks:
        families.setdefault((task.domain, task.family), []).append(task)
    for (name, family), members in families.items():
        asks = mean(bool(task.script) and isinstance(task.script[0], Say) for task in members)
        table.add_row(
            Text(f"{name}/{family}"),
            str(len(members)),
            f"{median(len(task.script) for task in members):g}",
            f"{mean(len(task.oracle) for task in members):.1f}",
            f"{asks:.0%}",
            str(sum(len(task.slips) for task in members)),
            str(sum(task.id in faults for task in members)),
        )
    return table


def _findings(findings: Sequence[Finding]) -> Table:
    """A row a family: tasks, those whose oracle passes, those that doing nothing fails."""
    table = Table()
    table.add_column("family", no_wrap=True)
    for heading in ("tasks", "oracle passes", "untouched fails", "system errors"):
        table.add_column(heading, justify="right")
    families: dict[str, list[Finding]] = {}
    for finding in findings:
        families.setdefault(finding.task.family, []).append(finding)
    for name, members in [*families.items(), ("all", findings)]:
        episodes = [(m.oracle, m.untouched) for m in members]
        passes = sum(isinstance(oracle, Trajectory) and oracle.reward >= 1.0 for oracle, _ in episodes)
        fails = sum(isinstance(untouched, Trajectory) and untouched.reward < 1.0 for _, untouched in episodes)
        errors = sum(not isinstance(episode, Trajectory) for pair in episodes for episode in pair)
        table.add_row(Text(name), *map(str, (len(members), passes, fails, errors)))
    return table


def _show(task: Task) -> None:
    home = domain(task.domain)
    plain = {"markup": False, "highlight": False, "soft_wrap": True}
    console.print(f"{task.id}\n\nuser: {task.opening}", **plain)
    for fact, value in task.facts.items():
        console.print(f"  knows {fact} = {value}", **plain)
    console.print("\nrows", **plain)
    for table, rows in task.rows.items():
        for row in rows:
            console.print(f"  {table}: {json.dumps(row)}", **plain)
    console.print("\noracle", **plain)
    results, expected = replay(home, task, task.oracle)
    answers = iter(results)
    for turn in task.script:
        answer = f" -> {next(answers).text}" if isinstance(turn, ToolCall) else ""
        console.print(f"  {_turn(turn)}{answer}", **plain)
    console.print("\nchanges it must leave (missing or wrong when nothing is done)", **plain)
    for reason in explain(compare(home.schema.tables, expected, replay(home, task, ())[1])):
        console.print(f"  {reason}", **plain)
    for slip in task.slips:
        console.print(f"\nslip {slip.name}{' (main decision)' if slip.main else ''}", **plain)
        calls = [turn for turn in slip.script if isinstance(turn, ToolCall)]
        for call in calls:
            console.print(f"  {_turn(call)}", **plain)
        for reason in explain(compare(home.schema.tables, expected, replay(home, task, calls)[1])):
            console.print(f"  fails: {reason}", **plain)


def _turn(turn: Turn) -> str:
    if isinstance(turn, Say):
        return f"say: {turn.text}"
    return f"{turn.name}({', '.join(f'{name}={value!r}' for name, value in (turn.arguments or {}).items())})"


if __name__ == "__main__":
    app()
