"""``bin/quickstart``: the whole loop in miniature, each stage a verb that also works alone.

nats → demonstrations → warmstart → actor → probe → select → evaluate (base) → learner + rollouts →
evaluate (trained) → report. A second run reuses what is built; ``--fresh`` starts over.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import httpx
import trio
from cyclopts import Parameter
from rich.console import Console

from protocol import config as configuration
from protocol.bus import connect
from protocol.cli.failures import leaves
from protocol.cli.verb import SetOption, verb
from protocol.config import Config
from rollout_engine.cli.failures import exit_on_known_fault
from rollout_engine.engine import model_folder
from rollout_engine.errors import ConfigurationError
from rollout_engine.quickstart.children import ROOT, Child, ChildFailed, background, foreground, tail
from rollout_engine.quickstart.stages import Stopwatch, claim_folder

app = verb("quickstart", __doc__)
console = Console()


@app.default
def quickstart(
    *,
    config: Annotated[Path, Parameter(help="The run's YAML file.")] = ROOT / "configs" / "quickstart.yaml",
    set: SetOption = (),
    fresh: Annotated[bool, Parameter(help="Delete the run's folder first and start over.")] = False,
    dry_run: Annotated[bool, Parameter(help="Print the resolved configuration and stop.")] = False,
) -> None:
    """Run the main job."""
    with exit_on_known_fault("quickstart"):
        resolved = configuration.load(config, set)
        if dry_run:
            console.print(configuration.dump(resolved), markup=False, highlight=False)
            return
        if fresh:
            shutil.rmtree(resolved.path, ignore_errors=True)
        claim_folder(resolved)
        try:
            trio.run(Job(resolved, ("--config", str(config), *(f"--set={item}" for item in set))).run)
        except* ChildFailed as failures:
            for failure in leaves(failures):
                console.print("[red]quickstart:[/] ", end="")
                console.print(str(failure), markup=False, highlight=False)
            console.print("What is finished stays; run the same command again to go on from there.")
            sys.exit(1)


class Job:
    """The stages in order. ``arguments`` name the configuration to each verb."""

    def __init__(self, config: Config, arguments: tuple[str, ...]):
        self.config = config
        self.arguments = arguments
        self.watch = Stopwatch(config.path)
        self.url = config.actor.urls[0] if config.actor.urls else f"http://127.0.0.1:{config.actor.port}"

    async def run(self) -> None:
        folder = self.config.path
        async with background(self._child("nats")), connect(self.config.nats, self.config.run):
            await self._base()
            async with self._actor():
                await self._probe()
                await self._evaluate("base", 0)
                await self._train()
                await self._evaluate("trained", self.config.learner.steps)
            with self._stage("report"):
                await foreground(console, "report", *self.arguments)
        console.print(f"figures: {folder / 'report.json'}")

    async def _base(self) -> None:
        folder = model_folder(self.config)
        if not (folder / "demonstrations.npz").exists():
            with self._stage("demonstrations"):
                await foreground(console, "demonstrations", *self.arguments)
        if not (folder / "model.safetensors").exists():
            with self._stage("warmstart"):
                await foreground(console, "warmstart", *self.arguments)

    @asynccontextmanager
    async def _actor(self) -> AsyncIterator[None]:
        async with background(self._child("actor")):
            with self._stage("actor"):
                await self._up()
            yield

    async def _probe(self) -> None:
        if not (self.config.path / "pool.json").exists():
            with self._stage("probe"):
                await foreground(console, "probe", *self.arguments, "--actors", self.url)
                await foreground(console, "select", *self.arguments)

    async def _train(self) -> None:
        async with connect(self.config.nats, self.config.run) as bus:
            policy = await bus.policy()
        if policy is not None and policy.final:
            return
        with self._stage("train"):
            learner = self._child("learner")
            async with background(learner):
                await foreground(console, "rollouts", *self.arguments, "--actors", self.url)
                with trio.fail_after(self.config.learner.batch_timeout):
                    await learner.finished.wait()

    async def _evaluate(self, label: str, version: int) -> None:
        marker = self.config.path / "evaluation" / f"{label}.done"
        if marker.exists():
            return
        with self._stage(f"evaluate {label}"):
            if label == "base":
                await self._untrained()
            else:
                await self._serving(version)
            await foreground(
                console,
                "evaluate",
                *self.arguments,
                *("--tasks", "heldout", "--repeat", str(self.config.evaluation.repeat), "--actors", self.url),
                *("--label", label, "--policy-version", str(version)),
            )
        marker.touch()

    async def _untrained(self) -> None:
        """Raise :class:`ConfigurationError` when the actor can't be holding the base model any more."""
        async with connect(self.config.nats, self.config.run) as bus:
            policy = await bus.policy()
        if policy is not None and policy.version > 0:
            raise ConfigurationError(
                "training has begun, so the base policy can't be evaluated any more: start over with --fresh"
            )

    async def _up(self) -> None:
        """Wait until the actor's server answers, whatever weights it holds."""
        async with self._waiting_for_actor("answers"), httpx.AsyncClient() as client:
            while True:
                try:
                    if (await client.get(f"{self.url}/health")).is_success:
                        return
                except httpx.TransportError:
                    pass
                await trio.sleep(0.2)

    async def _serving(self, version: int) -> None:
        """Wait until an actor serves ``version``, proven."""
        async with (
            self._waiting_for_actor(f"serves version {version}"),
            connect(self.config.nats, self.config.run) as bus,
        ):
            while not any(actor.serving and actor.version == version for actor in await bus.actors()):
                await trio.sleep(0.2)

    @asynccontextmanager
    async def _waiting_for_actor(self, until: str) -> AsyncIterator[None]:
        bound = self.config.actor.start_timeout
        with console.status(f"waiting until the actor {until}"), trio.move_on_after(bound) as scope:
            yield
        if scope.cancelled_caught:
            log = self.config.path / "logs" / "actor.log"
            raise ChildFailed(f"no actor {until} after actor.start_timeout = {bound:g} s:\n{tail(log)}")

    def _child(self, verb: str) -> Child:
        return Child(verb, self.arguments, self.config.path / "logs" / f"{verb}.log", console)

    def _stage(self, name: str):
        console.rule(f"[bold]{name}", align="left")
        return self.watch.stage(name)


if __name__ == "__main__":
    app()
