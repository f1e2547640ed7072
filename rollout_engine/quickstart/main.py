"""``bin/quickstart``: the whole loop in miniature, each stage a verb that also works alone.

nats → demonstrations → warmstart → actor → probe → select → evaluate (base) → learner + rollouts →
evaluate (trained) → report. A second run reuses what is built; ``--fresh`` starts over.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Annotated

import httpx
import trio
from cyclopts import Parameter
from rich.console import Console

from protocol import config as configuration
from protocol.bus import connect
from protocol.cli.failures import leaves
from protocol.cli.verb import DryRunOption, SetOption, print_configuration, verb
from protocol.config import Config
from protocol.records import ActorStatus
from protocol.server import NatsServer
from rollout_engine.actors.server import VllmServer
from rollout_engine.cli.campaign import actor_urls
from rollout_engine.cli.failures import exit_on_known_fault
from rollout_engine.curation.candidates import heldout_tasks, training_candidates
from rollout_engine.engine import model_folder
from rollout_engine.errors import ConfigurationError
from rollout_engine.quickstart.children import ROOT, Child, ChildFailed, background, foreground, tail
from rollout_engine.quickstart.stages import Stopwatch, check_folder, claim_folder, sole_job

app = verb("quickstart", __doc__)
console = Console()

GO_ON = "What is finished stays; run the same command again to go on from there."


@app.default
def quickstart(
    *,
    config: Annotated[Path, Parameter(help="The run's YAML file.")] = ROOT / "configs" / "quickstart.yaml",
    set: SetOption = (),
    fresh: Annotated[bool, Parameter(help="Delete the run's folder first and start over.")] = False,
    dry_run: DryRunOption = False,
) -> None:
    """Run the main job."""
    with exit_on_known_fault("quickstart", stopped=f"stopped. {GO_ON}"):
        resolved = configuration.load(config, set)
        if dry_run:
            _dry_run(resolved, fresh)
            return
        with sole_job(resolved):
            if fresh:
                shutil.rmtree(resolved.path, ignore_errors=True)
            claim_folder(resolved)
            _run(Job(resolved, ("--config", str(config), *(f"--set={item}" for item in set))))


def _run(job: Job) -> None:
    try:
        trio.run(job.run)
    except* ChildFailed as failures:
        for failure in leaves(failures):
            console.print("[red]quickstart:[/] ", end="")
            console.print(str(failure), markup=False, highlight=False, soft_wrap=True)
        console.print(GO_ON)
        sys.exit(1)


def _dry_run(config: Config, fresh: bool) -> None:
    print_configuration(config, console)
    if not fresh:
        check_folder(config)
    NatsServer(config.path / "nats", config.nats.url).check()
    if not config.actor.urls:
        VllmServer(config, Path()).check_port()
    candidates, heldout = training_candidates(config), heldout_tasks(config)
    console.print(
        f"{len(candidates)} candidate tasks and {len(heldout)} held-out ones are sound, and the ports are free: "
        f"can start in {config.path}",
        highlight=False,
        soft_wrap=True,
    )


class Job:
    """The stages in order. ``arguments`` name the configuration to each verb."""

    def __init__(self, config: Config, arguments: tuple[str, ...]):
        self.config = config
        self.arguments = arguments
        self.watch = Stopwatch(config.path)
        self.urls = [url.rstrip("/") for url in actor_urls((), config)]

    async def run(self) -> None:
        async with background(self._child("nats")), connect(self.config.nats, self.config.run):
            await self._base()
            async with self._actor():
                await self._probe()
                await self._evaluate("base", 0)
                await self._train()
                await self._evaluate("trained", self.config.learner.steps)
            with self._stage("report"):
                await foreground(console, "report", *self.arguments)
        minutes = sum(self.watch.seconds.values()) / 60
        console.print(f"{minutes:.1f} minutes over all stages", highlight=False)

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
                await foreground(console, "probe", *self.arguments, *self._actors)
                await foreground(console, "select", *self.arguments)

    async def _train(self) -> None:
        async with connect(self.config.nats, self.config.run) as bus:
            policy = await bus.policy()
        if policy is not None and policy.final:
            return
        with self._stage("train"):
            learner = self._child("learner")
            async with background(learner):
                await foreground(console, "rollouts", *self.arguments, *self._actors)
                bound = self.config.learner.batch_timeout
                with trio.move_on_after(bound) as scope:
                    await learner.finished.wait()
                if scope.cancelled_caught:
                    raise ChildFailed(
                        f"bin/learner did not end within learner.batch_timeout = {bound:g} s of the last batch:\n"
                        + tail(learner.log)
                    )

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
                *self._actors,
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
        """Wait until every actor's server answers, whatever weights it holds."""
        # Proxies of the environment are for the outside world, never for a policy server.
        async with self._waiting_for_actor("answers"), httpx.AsyncClient(trust_env=False) as client:
            for url in self.urls:
                while not await _healthy(client, url):
                    await trio.sleep(0.2)

    async def _serving(self, version: int) -> None:
        """Wait until every actor serves ``version``, proven."""
        async with (
            self._waiting_for_actor(f"serves version {version}"),
            connect(self.config.nats, self.config.run) as bus,
        ):
            while not self._all_at(version, await bus.actors()):
                await trio.sleep(0.2)

    def _all_at(self, version: int, actors: Sequence[ActorStatus]) -> bool:
        serving = {actor.url for actor in actors if actor.serving and actor.version == version}
        return serving.issuperset(self.urls)

    @asynccontextmanager
    async def _waiting_for_actor(self, until: str) -> AsyncIterator[None]:
        bound = self.config.actor.start_timeout
        with console.status(f"waiting until the actor {until}"), trio.move_on_after(bound) as scope:
            yield
        if scope.cancelled_caught:
            log = self.config.path / "logs" / "actor.log"
            raise ChildFailed(f"no actor {until} after actor.start_timeout = {bound:g} s:\n{tail(log)}")

    @property
    def _actors(self) -> tuple[str, ...]:
        return ("--actors", ",".join(self.urls))

    def _child(self, verb: str) -> Child:
        return Child(verb, self.arguments, self.config.path / "logs" / f"{verb}.log", console)

    def _stage(self, name: str) -> AbstractContextManager[None]:
        console.rule(f"[bold]{name}", align="left")
        return self.watch.stage(name)


async def _healthy(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(f"{url}/health")).is_success
    except httpx.TransportError:
        return False


if __name__ == "__main__":
    app()
