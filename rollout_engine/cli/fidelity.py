"""``bin/fidelity``: are the tokens of a run what the template writes, and its log-probabilities the learner's?

Reads every trajectory of the run's log and every transcript of its campaigns; exits with 1 when any breaks a rule.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec
import trio
from rich.console import Console

from protocol import config as configuration
from protocol.bus import RunNotFound, connect
from protocol.cli.verb import ConfigOption, SetOption, verb
from protocol.config import Config
from protocol.records import Trajectory
from rollout_engine.cli.failures import exit_on_known_fault
from rollout_engine.engine import model_folder
from rollout_engine.environments.catalogue import domain
from rollout_engine.environments.opening import open_environment
from rollout_engine.environments.thinkingbox.places import find_thinkingbox_tasks
from rollout_engine.environments.thinkingbox.task import PREFIX
from rollout_engine.errors import ConfigurationError
from rollout_engine.evaluation.files import metrics_file
from rollout_engine.evaluation.training import read_metrics
from rollout_engine.evaluation.transcripts import Transcript
from rollout_engine.tokens.fidelity import trajectory_problems
from rollout_engine.tokens.template import ChatTemplate

app = verb("fidelity", __doc__)
console = Console()

MEAN_BOUND, TOKEN_BOUND = 0.02, 0.5
"""Bounds on |learner - actor| log-probability at equal policy versions: of the mean of a step, and of any token."""


@app.default
def fidelity(
    *,
    config: ConfigOption,
    set: SetOption = (),
) -> None:
    """Check every recorded episode of a run; exit with 1 when any breaks a rule."""
    with exit_on_known_fault("fidelity"):
        problems = trio.run(_check, configuration.load(config, set))
    for problem in problems[:10]:
        console.print(problem, markup=False, highlight=False, soft_wrap=True)
    sys.exit(1 if problems else 0)


async def _check(config: Config) -> list[str]:
    template = ChatTemplate.from_folder(model_folder(config))
    episodes = tokens = 0
    problems: list[str] = []
    async with open_tools(config) as tools_of:
        async for trajectory in _episodes(config):
            found = trajectory_problems(template, await tools_of(trajectory), trajectory)
            problems += [f"{trajectory.id} ({trajectory.task}): {problem}" for problem in found]
            episodes, tokens = episodes + 1, tokens + trajectory.sampled_tokens
    if not episodes:
        raise ConfigurationError(f"run {config.run} has no recorded episode: its log is empty, and so is {config.path}")
    console.print(
        f"token fidelity: {episodes:,} episodes, {tokens:,} sampled tokens; "
        f"{len(problems)} streams differ from the template's rendering",
        highlight=False,
        soft_wrap=True,
    )
    updates = [row for row in read_metrics(metrics_file(config)) if row["applied"]]
    # Tokens of an older version differ from the learner by what it has learnt since: that says nothing of fidelity.
    metrics = [row for row in updates if not row["staleness_max"]]
    if metrics:
        mean = max(row["behaviour_difference"] for row in metrics)
        most = max(row["behaviour_difference_max"] for row in metrics)
        console.print(
            f"learner against actor over {len(metrics)} of {len(updates)} updates, those without stale tokens: "
            f"|log-probability difference| "
            f"at most {mean:.1e} in a step's mean, {most:.1e} on a token",
            highlight=False,
            soft_wrap=True,
        )
        if mean > MEAN_BOUND or most > TOKEN_BOUND:
            problems.append(f"the differences exceed their bounds, {MEAN_BOUND} and {TOKEN_BOUND}")
    return problems


@asynccontextmanager
async def open_tools(config: Config) -> AsyncIterator[Callable[[Trajectory], Awaitable[Any]]]:
    """What the agent of a trajectory could call: its domain's tools, or those that its ThinkingBox scenario shows, for
    which one session a scenario is opened."""
    shown: dict[str, Any] = {}
    async with httpx.AsyncClient() as client, open_environment(config, client, 1) as environment:

        async def tools_of(trajectory: Trajectory) -> Any:
            if not trajectory.task.startswith(PREFIX):
                return domain(trajectory.domain).tools
            if trajectory.family not in shown:
                [task] = find_thinkingbox_tasks(config, [trajectory.task])
                async with environment.open(task, trajectory.id, 0) as stage:
                    shown[trajectory.family] = stage.tools
            return shown[trajectory.family]

        yield tools_of


async def _episodes(config: Config) -> AsyncIterator[Trajectory]:
    # A run that was only probed or evaluated has no log.
    with suppress(RunNotFound):
        async with connect(config.nats, config.run, create=False) as bus:
            for step in await bus.steps():
                for trajectory in await bus.trajectories(step):
                    yield trajectory
    for file in sorted(config.path.rglob("*.transcripts.jsonl")):
        for trajectory in _transcripts(file):
            yield trajectory


def _transcripts(file: Path) -> Iterator[Trajectory]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield msgspec.json.decode(line, type=Transcript).trajectory
            except msgspec.MsgspecError as error:
                raise ConfigurationError(f"{file}, line {number} is not a transcript: {error}") from error


if __name__ == "__main__":
    app()
