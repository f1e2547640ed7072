"""``bin/trajectories``: look at a run's episodes, take its log to files, or fork it.

Reads a run on a NATS server (``--nats URL``, or that of ``--config FILE``) or exported files
(``--files FILE… or FOLDER``).
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter
from rich.console import Console

from protocol import config as configuration
from protocol import fork as forking
from protocol import log
from protocol.bus import connect
from protocol.cli.failures import exit_on_known_fault, fail
from protocol.cli.render import listing, passed, transcript
from protocol.cli.source import open_source
from protocol.cli.verb import SetOption, verb
from protocol.config import Nats
from protocol.records import Batch, Trajectory
from protocol.subjects import check_run

app = verb("trajectories", __doc__)
console = Console()

RunArgument = Annotated[str, Parameter(help="The run's id.")]
NatsOption = Annotated[str | None, Parameter(name="--nats", help="URL of the NATS server; nats://127.0.0.1:4222.")]
ConfigOption = Annotated[Path | None, Parameter(name="--config", help="The run's YAML file, for its nats section.")]
FilesOption = Annotated[
    tuple[Path, ...], Parameter(name="--files", consume_multiple=True, help="Read these files or folders instead.")
]


@app.command(name="list")
def list_(
    run: RunArgument,
    *,
    step: Annotated[int | None, Parameter(help="Only this step.")] = None,
    family: Annotated[str | None, Parameter(help="Only tasks of this family.")] = None,
    failed: Annotated[bool, Parameter(help="Only those below full reward.")] = False,
    nats: NatsOption = None,
    config: ConfigOption = None,
    files: FilesOption = (),
) -> None:
    """A line for every episode: task, reward, tokens, how it finished and why it scored so."""
    with exit_on_known_fault("trajectories"):
        asyncio.run(_list(_run(run), step, family, failed, _nats(nats, config), files))


async def _list(
    run: str, step: int | None, family: str | None, failed: bool, nats: Nats, files: tuple[Path, ...]
) -> None:
    found: list[Trajectory] = []
    batches: dict[int, Batch | None] = {}
    async with open_source(run, nats, files) as source:
        for number in await source.steps() if step is None else [step]:
            batches[number] = await source.batch(number)
            found += [
                trajectory
                for trajectory in await source.trajectories(number)
                if (family is None or trajectory.family == family) and not (failed and passed(trajectory))
            ]
    console.print(listing(found, batches))
    console.print(f"{len(found)} trajectories, {sum(map(passed, found))} with full reward", style="dim")


@app.command
def show(
    id: Annotated[str, Parameter(help="RUN/STEP/GROUP/SAMPLE, or with /ATTEMPT.")],
    *,
    nats: NatsOption = None,
    config: ConfigOption = None,
    files: FilesOption = (),
) -> None:
    """One episode: the conversation, tool calls and results, the database's difference, the reward and why."""
    with exit_on_known_fault("trajectories"):
        asyncio.run(_show(id, _nats(nats, config), files))


async def _show(id: str, nats: Nats, files: tuple[Path, ...]) -> None:
    run, *numbers = id.split("/")
    if len(numbers) not in (3, 4) or not all(re.fullmatch("[0-9]{1,18}", number) for number in numbers):
        fail("trajectories", f"{id!r} is not RUN/STEP/GROUP/SAMPLE[/ATTEMPT]; bin/trajectories list RUN names them")
    step, group, sample, *attempt = map(int, numbers)
    async with open_source(_run(run), nats, files) as source:
        for trajectory in await source.trajectories(step):
            at = trajectory.id
            if (at.group, at.sample) == (group, sample) and attempt in ([], [at.attempt]):
                console.print(transcript(trajectory))
                return
    fail("trajectories", f"no trajectory {id}; bin/trajectories list {run} --step {step} names those of its step")


@app.command
def export(
    run: RunArgument,
    *,
    out: Annotated[Path, Parameter(help="Folder for the files, one a step.")],
    first: Annotated[int | None, Parameter(help="First step.")] = None,
    last: Annotated[int | None, Parameter(help="Last step.")] = None,
    nats: NatsOption = None,
    config: ConfigOption = None,
) -> None:
    """Take a run's log from NATS to files, token arrays included, for bin/learner --replay and for keeping."""
    with exit_on_known_fault("trajectories"):
        for path in asyncio.run(_export(_run(run), out, first, last, _nats(nats, config))):
            console.print(str(path), highlight=False, soft_wrap=True)


async def _export(run: str, out: Path, first: int | None, last: int | None, nats: Nats) -> list[Path]:
    async with connect(nats, run, create=False) as bus:
        if first is None and (horizon := await bus.horizon()):
            console.print(
                f"The log begins at step {horizon}: what was before it was removed, as nats.retain: checkpoint says.",
                style="yellow",
                highlight=False,
            )
        return await log.export(bus, out, first, last)


@app.command
def verify(files: Annotated[tuple[Path, ...], Parameter(help="Files, or folders of them.")]) -> None:
    """Check every byte of exported files, and that each batch has its trajectories."""
    with exit_on_known_fault("trajectories"):
        for summary in log.verify(files):
            counts = ", ".join(f"{kind}: {count}" for kind, count in summary.counts.items() if count)
            console.print(f"{summary.path}: whole ({counts or 'no records'})", highlight=False, soft_wrap=True)


@app.command
def fork(
    *,
    config: Annotated[Path, Parameter(help="The YAML file of the run to fork.")],
    step: Annotated[int, Parameter(help="The first step of the fork's own: it begins with the weights of this step.")],
    as_: Annotated[str, Parameter(name="--as", help="The fork's run id.")],
    set: SetOption = (),
) -> None:
    """A new run that begins with another's steps before STEP, and with its weights after them, bit for bit.

    From there it may go on under another configuration. Run again, this completes a fork that was cut short.
    """
    with exit_on_known_fault("trajectories"):
        resolved = configuration.load(config, set)
        if step < 0:
            fail("trajectories", f"--step {step}: steps start at 0")
        made = asyncio.run(forking.fork(resolved, step, _run(as_)))
        _tell_of_fork(made, config)


def _tell_of_fork(made: forking.Fork, config: Path) -> None:
    origin, start = made.origin, made.checkpoint or 0
    source = "the base weights" if made.checkpoint is None else f"checkpoint {made.checkpoint}"
    replay = f", replaying steps {start} to {origin.step - 1}" if start < origin.step else ""
    console.print(
        f"run {origin.run} begins with the {origin.step} steps of run {origin.parent} before step {origin.step}; its "
        f"learner starts from {source}{replay}. Start it as any run, for example\n"
        f"  bin/learner --config {config} --set run={origin.run}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _nats(url: str | None, config: Path | None) -> Nats:
    found = configuration.load(config).nats if config is not None else Nats()
    return found if url is None else msgspec.structs.replace(found, url=url)


def _run(run: str) -> str:
    try:
        return check_run(run)
    except ValueError as error:
        fail("trajectories", str(error))


if __name__ == "__main__":
    app()
