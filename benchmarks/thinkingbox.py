"""How many ThinkingBox episodes a second the whole engine plays with the oracle, and what an episode costs.

Forked sessions on the tasks' own servers, tokens, effects, the tasks' own tests in grader children; only the model is
scripted, and the judge says yes. One row a setting: fresh sessions, or groups of eight cloned from one initialisation.
CPU is that of the engine and of everything that it started. Where ``ENDSTATE_THINKINGBOX_DATA`` and
``ENDSTATE_THINKINGBOX_PYTHON`` point, run: ``bin/_python engine benchmarks/thinkingbox.py``, with the number of
episodes a row (507 unless said) and the concurrencies (16 144).
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import trio
from process_cpu import tree_cpu

from protocol import config as configuration
from rollout_engine.actors.scripted import oracle_scripts
from rollout_engine.curation.candidates import heldout_tasks
from rollout_engine.engine import open_runner
from rollout_engine.evaluation.verification import some_model

CONFIG = Path(__file__).parents[1] / "configs" / "thinkingbox-bench.yaml"
GROUP = 8


async def main(episodes: int, concurrencies: list[int]) -> None:
    config = configuration.load(CONFIG, ["judge.kind=agreeable", "rollout.user.kind=scripted"])
    tasks = heldout_tasks(config)
    async with some_model(config) as config:
        for concurrency in concurrencies:
            for samples in (1, GROUP):
                chosen = tasks[:: max(1, len(tasks) * samples // episodes)][: max(1, episodes // samples)]
                await row(config, chosen, samples, concurrency)


async def row(config: configuration.Config, tasks: list, samples: int, concurrency: int) -> None:
    limiter, passed, seconds = trio.CapacityLimiter(concurrency), 0, []
    async with open_runner(config, oracle_scripts(tasks), 0, samples) as runner:

        async def one(task, sample: int, scope: str) -> None:
            nonlocal passed
            async with limiter:
                trajectory = await runner(task, sample, 0, scope=scope)
            passed += trajectory.reward == 1.0
            seconds.append(trajectory.timings["total"])

        for task in {task.family: task for task in tasks}.values():
            await one(task, 0, "warm")  # each server is imported once
        passed, seconds = 0, []
        wall, cpu, own = time.perf_counter(), tree_cpu(os.getpid()), time.process_time()
        async with trio.open_nursery() as nursery:
            for task in tasks:
                for sample in range(samples):
                    nursery.start_soon(one, task, sample, "timed")
        wall, cpu, own = time.perf_counter() - wall, tree_cpu(os.getpid()) - cpu, time.process_time() - own
    count = len(seconds)
    print(
        f"{concurrency:>4} at once, {'fresh' if samples == 1 else f'groups of {samples}'}: "
        f"{count / wall:6.2f} episodes/s, "
        f"{cpu / count * 1e3:6.1f} CPU ms an episode ({own / count * 1e3:.1f} the engine's), "
        f"median {sorted(seconds)[count // 2]:.2f} s, {passed}/{count} passed",
        flush=True,
    )


if __name__ == "__main__":
    count, *levels = map(int, sys.argv[1:] or ["507"])
    trio.run(main, count, levels or [16, 144])
