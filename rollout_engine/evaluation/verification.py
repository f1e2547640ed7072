"""Whether tasks tell right from wrong: their own solutions pass, and doing nothing doesn't.

Invariant: both are played through the whole engine, tokens and sessions included, and each task's finding is one of
four: sound, the oracle doesn't pass, doing nothing passes, or a system error said nothing of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import trio

from protocol.config import Config, Tasks
from protocol.records import Trajectory
from rollout_engine.actors.scripted import oracle_scripts
from rollout_engine.engine import model_folder, open_runner
from rollout_engine.environments.environment import AnyTask
from rollout_engine.environments.registry import generate
from rollout_engine.environments.task import Say
from rollout_engine.environments.thinkingbox.task import DONE
from rollout_engine.errors import EpisodeSystemError, NoSolution
from rollout_engine.warmstart.main import make_folder

NOTHING = (Say(f"I have done nothing. {DONE}"),)
"""What an agent says that does nothing."""


@dataclass(frozen=True)
class Finding:
    """What became of a task. ``oracle`` and ``untouched`` are the two episodes, or the system errors instead."""

    task: AnyTask
    oracle: Trajectory | EpisodeSystemError
    untouched: Trajectory | EpisodeSystemError

    @property
    def fault(self) -> str:
        """What is wrong with the task, or nothing."""
        for episode in (self.oracle, self.untouched):
            if isinstance(episode, EpisodeSystemError):
                return f"{self.task.id}: {episode.kind}: {episode}"
        if self.oracle.reward < 1.0:
            refused = [message.content for message in self.oracle.messages if message.is_error]
            why = "; ".join([*self.oracle.verdict.reasons[:1], *refused[:1]])
            return f"{self.task.id}: the oracle does not pass: {why}"
        if self.untouched.reward >= 1.0:
            return f"{self.task.id}: doing nothing passes"
        return ""


def solved(tasks: Sequence[AnyTask]) -> tuple[list[AnyTask], list[AnyTask]]:
    """The tasks that tell their own solution, and those that don't: of these there is nothing to verify.

    Raises :class:`ConfigurationError` for a solution that can't be read.
    """
    telling, silent = [], []
    for task in tasks:
        try:
            oracle_scripts([task])
        except NoSolution:
            silent.append(task)
        else:
            telling.append(task)
    return telling, silent


async def verify(config: Config, tasks: Sequence[AnyTask], concurrency: int, tell: Callable[[], None]) -> list[Finding]:
    """A finding for each task, in their order; each tells its solution. Where tests ask a judge, it says yes.
    ``tell`` is called after each episode. Raises :class:`ConfigurationError`."""
    scripts = oracle_scripts(tasks)
    config = msgspec.structs.replace(config, judge=msgspec.structs.replace(config.judge, kind="agreeable"))
    async with some_model(config) as config:
        play = partial(_play, config, tasks, concurrency=concurrency, tell=tell)
        oracle = await play(scripts, scope="oracle")
        untouched = await play({task.id: NOTHING for task in tasks}, scope="untouched")
    return [Finding(task, oracle[task.id], untouched[task.id]) for task in tasks]


@asynccontextmanager
async def some_model(config: Config) -> AsyncIterator[Config]:
    """The configuration with a model folder to write tokens with: its own, or the tiny policy's where it has none."""
    if config.model.folder and model_folder(config).is_dir():
        yield config
        return
    with TemporaryDirectory() as folder:
        model = msgspec.structs.replace(config.model, folder=folder)
        config = msgspec.structs.replace(config, model=model)
        words = msgspec.structs.replace(config, tasks=Tasks())
        await make_folder(Path(folder), generate(words.tasks.domains, "train", 20), words)
        yield config


async def _play(
    config: Config, tasks: Sequence[AnyTask], scripts: Any, *, scope: str, concurrency: int, tell: Callable[[], None]
) -> dict[str, Trajectory | EpisodeSystemError]:
    played: dict[str, Trajectory | EpisodeSystemError] = {}
    limiter = trio.CapacityLimiter(concurrency)
    async with open_runner(config, scripts) as runner:

        async def one(task: AnyTask) -> None:
            async with limiter:
                try:
                    played[task.id] = await runner(task, 0, 0, scope=scope)
                except EpisodeSystemError as error:
                    played[task.id] = error
            tell()

        async with trio.open_nursery() as nursery:
            for task in tasks:
                nursery.start_soon(one, task)
    return played
