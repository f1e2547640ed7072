"""How many episodes a trained episode costs, and how often a batch needs a second wave.

A pool of which 60 % of the tasks never come out mixed, and a service that fails 5 % of the episodes. The engine is
the real one, its groups, waves, journal, gate and ledger; episodes are scripted (a duration, a verdict or an error)
and time is simulated. Against it: a system that discards a whole group when one of its samples fails, as most do, and
the arithmetic optimum, which launches exactly the groups that are needed and knows when to stop.

Run: ``bin/_python engine benchmarks/fill.py [--steps 40]``.
"""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import dataclass
from types import SimpleNamespace

import trio
from cyclopts import App
from rich.console import Console
from rich.table import Table
from trio.testing import MockClock

from protocol import config as configuration
from protocol.config import Config
from protocol.records import Trajectory, TrajectoryId, Verdict
from rollout_engine.engine import Engine
from rollout_engine.errors import BackendError
from rollout_engine.schedule import task_for

app = App(help=__doc__)

GROUPS, SIZE = 18, 8
POOL, ZERO_VARIANCE, FAILURES = 200, 0.6, 0.05
MEDIAN, SPREAD = 120.0, 0.5
"""Seconds of an episode: log-normal."""


@dataclass(frozen=True)
class ScriptedTask:
    id: str
    chance: float
    """Of one attempt to pass."""

    @property
    def mixed(self) -> float:
        return 1 - self.chance**SIZE - (1 - self.chance) ** SIZE


@dataclass
class Figures:
    """Of one way of filling batches."""

    name: str
    episodes: int = 0
    trained: int = 0
    waves: list[int] | None = None
    seconds: list[float] | None = None
    expected: float | None = None

    @property
    def cost(self) -> float:
        return self.expected if self.expected is not None else self.episodes / self.trained


def pool(rng: random.Random) -> list[ScriptedTask]:
    hopeless = round(POOL * ZERO_VARIANCE)
    chances = [float(i % 2) for i in range(hopeless)] + [rng.uniform(0.2, 0.8) for _ in range(POOL - hopeless)]
    rng.shuffle(chances)
    return [ScriptedTask(f"t{i}", chance) for i, chance in enumerate(chances)]


class MemoryLog:
    """What the engine asks of a bus."""

    def __init__(self) -> None:
        self.batches, self.records, self.logged = {}, {}, {}

    def held_up(self):
        return 0.0

    async def trajectories(self, step, arrays=True):
        return list(self.logged.get(step, {}).values())

    async def publish_trajectory(self, trajectory):
        self.logged.setdefault(trajectory.id.step, {})[trajectory.id] = trajectory
        return True

    async def publish_attempts(self, record):
        self.records.setdefault(record.step, []).append(record)

    async def attempts(self, step):
        return self.records.get(step, [])

    async def batch(self, step):
        return self.batches.get(step)

    async def publish_batch(self, batch):
        self.batches[batch.step] = batch
        return True

    async def wait_policy(self, version):
        pass

    async def emit(self, kind, data):
        pass


async def play(task: ScriptedTask, id: TrajectoryId, failures: float) -> Trajectory:
    """One scripted episode: the same outcome for the same id."""
    rng = random.Random(f"{task.id}/{id}")
    seconds = MEDIAN * math.exp(rng.gauss(0.0, SPREAD))
    if rng.random() < failures:
        await trio.sleep(seconds * rng.random())
        raise BackendError("scripted")
    await trio.sleep(seconds)
    return Trajectory(id, task.id, "scripted", "", id.step, (), Verdict(float(rng.random() < task.chance)), "done")


async def ours(name: str, tasks: list[ScriptedTask], steps: int, config: Config) -> Figures:
    """The engine, over ``steps`` steps, beginning with what a probe of 8 attempts a task says."""
    probe = random.Random(1)
    probed = {task.id: (8, sum(probe.random() < task.chance for _ in range(8))) for task in tasks}
    silent = SimpleNamespace(
        **dict.fromkeys(("step", "pool", "wave", "episode", "failed", "outage", "group", "batch"), lambda *told: None)
    )

    async def served(version: int) -> None:
        pass

    async def episode(setup, task, id, version) -> Trajectory:
        return await play(task, id, FAILURES)

    log = MemoryLog()
    await Engine(config, tasks, None, log, silent, served, probed, play=episode).run()
    figures = Figures(name, waves=[], seconds=[])
    for batch in log.batches.values():
        batch.ledger.check()
        figures.episodes += batch.ledger.started
        figures.trained += batch.ledger.trained
        figures.waves.append(batch.waves)
        figures.seconds.append(batch.seconds)
    return figures


async def discarding(tasks: list[ScriptedTask], steps: int, concurrency: int) -> Figures:
    """A group with a failed sample is thrown away whole, and so is one without variance; each is replaced by one."""
    figures = Figures("discarding whole groups", seconds=[])
    for step in range(steps):
        launched = informative = 0
        settled_send, settled = trio.open_memory_channel[bool](math.inf)
        limiter, began = trio.CapacityLimiter(concurrency), trio.current_time()

        async def run(number: int, step=step, limiter=limiter, settled_send=settled_send) -> None:
            rewards: list[float | None] = [None] * SIZE
            task = task_for(tasks, 0, step, number, GROUPS)

            async def sample(i: int) -> None:
                async with limiter:
                    figures.episodes += 1
                    try:
                        rewards[i] = (await play(task, TrajectoryId("discard", step, number, i), FAILURES)).reward
                    except BackendError:
                        pass

            async with trio.open_nursery() as samples:
                for i in range(SIZE):
                    samples.start_soon(sample, i)
            settled_send.send_nowait(None not in rewards and len(set(rewards)) > 1)

        async with trio.open_nursery() as nursery:
            pending = 0
            while informative < GROUPS:
                while informative + pending < GROUPS:
                    nursery.start_soon(run, launched)
                    launched, pending = launched + 1, pending + 1
                informative += await settled.receive()
                pending -= 1
        figures.trained += GROUPS * SIZE
        figures.seconds.append(trio.current_time() - began)
    return figures


def optimum(tasks: list[ScriptedTask], name: str) -> Figures:
    """Expected cost of launching groups one by one until the batch is full, only failed samples again: what no system
    undercuts in the long run without choosing tasks."""
    mixed = statistics.fmean(task.mixed for task in tasks)
    return Figures(name, expected=1 / mixed / (1 - FAILURES))


def settings(steps: int, mode: str, confidence: float, concurrency: int) -> Config:
    return configuration.resolve(
        {
            "run": "fill",
            "sampling": {"mode": mode},
            "learner": {"steps": steps, "batch_timeout": 2e6},
            "rollout": {
                "groups": GROUPS,
                "group_size": SIZE,
                "concurrency": concurrency,
                "max_groups": 400,
                "wave_confidence": confidence,
                "batch": 1e6,
            },
        }
    )


def simulate(steps: int, concurrency: int) -> list[Figures]:
    tasks = pool(random.Random(0))
    worth = [task for task in tasks if task.mixed > 0]

    def timed(run, *args):
        return trio.run(run, *args, clock=MockClock(autojump_threshold=0))

    rows = [
        optimum(tasks, "arithmetic optimum, tasks visited evenly"),
        timed(discarding, tasks, steps, concurrency),
    ]
    for mode, confidence in [("fixed", 0.0), ("fixed", 0.5), ("fixed", 0.8), ("fixed", 0.95), ("adaptive", 0.8)]:
        config = settings(steps, mode, confidence, concurrency)
        rows.append(timed(ours, f"{mode}, wave confidence {confidence:g}", tasks, steps, config))
    rows.append(optimum(worth, "arithmetic optimum, no hopeless task drawn"))
    return rows


def table(rows: list[Figures]) -> Table:
    out = Table(box=None, pad_edge=False, header_style="bold")
    out.add_column("", no_wrap=True)
    for name in ("episodes a trained one", "second waves", "waves a step", "minutes a step"):
        out.add_column(name, justify="right")
    for row in rows:
        waves = row.waves
        out.add_row(
            row.name,
            f"{row.cost:.2f}",
            f"{sum(wave > 1 for wave in waves) / len(waves):.0%}" if waves else "",
            f"{statistics.fmean(waves):.2f}" if waves else "",
            f"{statistics.fmean(row.seconds) / 60:.1f}" if row.seconds else "",
        )
    return out


@app.default
def main(*, steps: int = 40, concurrency: int = 1000) -> None:
    """Print the figures of ``steps`` steps of 18 groups of 8, with at most ``concurrency`` episodes at once."""
    console = Console(width=120)
    console.print(
        f"{POOL} tasks, {ZERO_VARIANCE:.0%} never mixed; {FAILURES:.0%} of the episodes fail; {steps} steps of "
        f"{GROUPS} groups of {SIZE}, {concurrency} episodes at once"
    )
    console.print(table(simulate(steps, concurrency)))


if __name__ == "__main__":
    app()
