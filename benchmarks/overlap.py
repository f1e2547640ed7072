"""What rolling out one step ahead is worth: steps an hour at ``rollout.max_staleness`` 1 against 0.

Learner and rollouts of equal length over a real NATS server: the real engine with real sessions, tokens and grading,
whose scripted policy takes its time; and, in a process of its own, the learner's real loop around an update that
sleeps. Weights take a while to reach the policy, as a push does. What is timed runs from the announcement of version 0
to that of the last version, so the first rollouts, which nothing overlaps, are in it: of two equal halves alone n steps
can gain 2 n / (n + 1). The push and what else lies between the halves is overlapped, too.

Run: ``bin/_python engine benchmarks/overlap.py [--steps 12] [--seconds 4]``.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import trio
from rich.console import Console

from learner.batches import Delivery, NatsBatches
from learner.streams import members, streams
from learner.train import Trainer
from protocol import config as configuration
from protocol.bus import Bus, connect
from protocol.config import Config
from protocol.records import PolicyVersion, Probe
from protocol.server import NatsServer, free_port
from rollout_engine.actors.policy import GenerateRequest, Generation
from rollout_engine.actors.scripted import ScriptedPolicy
from rollout_engine.engine import Engine, load_template, model_folder, open_setup
from rollout_engine.environments.registry import load_tasks
from rollout_engine.environments.task import Task
from rollout_engine.warmstart.main import make_folder

PUSH = 0.3
"""Seconds from an announcement until the policy serves the new weights; the figure for 269 MB."""


class Update(Trainer):
    """The learner's loop; an update checks its batch and sleeps, and a version has no weights."""

    def __init__(self, config: Config, source: NatsBatches, seconds: float):
        self.config, self.source, self.step, self.seconds = config, source, 0, seconds
        self.checkpoints = SimpleNamespace(writing=None, settled=lambda: True, steps=lambda: self.durable)
        self.durable: list[int] = []
        self.announced: list[float] = []

    def train(self, delivery: Delivery) -> None:
        staleness = self.config.rollout.max_staleness
        ids = [member.id for member in members(delivery.batch, self.step, staleness)]
        streams(delivery.batch, delivery.fetch(ids), self.step, staleness)
        time.sleep(self.seconds)
        self.step += 1

    def publish(self) -> None:
        final = self.step == self.config.learner.steps
        self.source.publish(PolicyVersion(self.config.run, self.step, "none", {}, Probe(b"", b"", 1.0), final))
        self.announced.append(time.monotonic())

    def _save(self, durable: bool) -> None:
        """Nothing to keep."""


def learn(config: Config, seconds: float, ready, begin, result) -> None:
    """The learner's process."""
    with NatsBatches(config) as source:
        ready.set()
        begin.wait()
        trainer = Update(config, source, seconds)
        trainer.run(config.learner.steps)
        result.put((trainer.announced[-1] - trainer.announced[0]) / config.learner.steps)


class Served:
    """A policy at the announced version. An episode takes ``seconds`` in all, and half of each group fails."""

    def __init__(self, config: Config, tasks: Mapping[str, Task], seconds: float):
        self._config, self._tasks, self._seconds = config, tasks, seconds
        self._template = load_template(config)
        self._playing: dict[str, ScriptedPolicy] = {}
        self._version = -1
        self._changed = trio.Event()

    async def follow(self, bus: Bus) -> None:
        while self._version < self._config.learner.steps:
            newest = await bus.wait_policy(self._version + 1)
            await trio.sleep(PUSH)
            self._version = newest.version
            self._changed.set()
            self._changed = trio.Event()

    async def require(self, version: int) -> None:
        while self._version < version:
            await self._changed.wait()

    async def generate(self, request: GenerateRequest) -> Generation:
        task, _, place = request.episode.partition("#")
        wrong = int(place.split("/")[3]) % 2
        script = self._tasks[task].slips[0].script if wrong else self._tasks[task].script
        await trio.sleep(self._seconds / len(script))
        if request.episode not in self._playing:
            self._playing[request.episode] = ScriptedPolicy(self._template, lambda _: script)
        generation = await self._playing[request.episode].generate(request)
        return replace(generation, versions=[self._version] * len(generation.ids))


class Quiet:
    """Progress that nobody watches."""

    def __getattr__(self, name: str):
        return lambda *_: None


async def roll_out(config: Config, seconds: float) -> None:
    tasks = load_tasks(config.tasks.domains, "train", 160)
    policy = Served(config, {task.id: task for task in tasks}, seconds)
    async with connect(config.nats, config.run) as bus, open_setup(config, policy) as setup:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(policy.follow, bus)
            await Engine(config, tasks, setup, bus, Quiet(), policy.require).run()


def measure(url: str, folder: str, staleness: int, steps: int, seconds: float) -> float:
    """Seconds a step."""
    tree = {
        "run": f"overlap-{staleness}",
        "folder": folder,
        "nats": {"url": url, "wait": 60 + 10 * seconds},
        "model": {"folder": "../base", "max_model_len": 1024},
        "rollout": {"groups": 8, "group_size": 4, "max_staleness": staleness, "wave_confidence": 0},
        "learner": {"steps": steps},
    }
    config = configuration.resolve(tree)
    if not model_folder(config).exists():
        config.path.mkdir(parents=True)
        trio.run(make_folder, model_folder(config), load_tasks(config.tasks.domains, "train", 60), config)
    spawn = multiprocessing.get_context("spawn")
    ready, begin, result = spawn.Event(), spawn.Event(), spawn.Queue()
    learner = spawn.Process(target=learn, args=(config, seconds, ready, begin, result), daemon=True)
    learner.start()
    ready.wait()
    begin.set()
    try:
        trio.run(roll_out, config, seconds)
        return result.get(timeout=60 + seconds)
    finally:
        learner.join(timeout=10)
        learner.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=4.0, help="of an update, and of a step's rollouts")
    arguments = parser.parse_args()
    console = Console(highlight=False)
    took: dict[int, float] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        NatsServer(Path(folder) / "nats", f"nats://127.0.0.1:{free_port()}") as server,
    ):
        for staleness in (0, 1):
            took[staleness] = measure(server.url, folder, staleness, arguments.steps, arguments.seconds)
            console.print(
                f"max_staleness {staleness}: {took[staleness]:.2f} s a step, {3600 / took[staleness]:.0f} steps an hour"
            )
    gain, most = took[0] / took[1], 2 * arguments.steps / (arguments.steps + 1)
    console.print(
        f"{gain:.2f} × as many steps an hour; the halves alone give {most:.2f} × over {arguments.steps} steps"
    )


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
