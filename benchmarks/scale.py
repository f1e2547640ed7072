"""How one engine process scales: 144 to 10,000 episodes at once, and episodes of 200 turns and 130k tokens.

Real tasks, sessions, databases, tokens, interpretation, users and grading; the model is scripted and answers after a
latency drawn from a skewed (log-normal) distribution, as an actor does. Each concurrency runs in a process of its
own: all its episodes are asked for at once, and each that ends is replaced until twice as many are done. A ticker in
the same event loop measures how late it is woken; the longest passes of the loop, in CPU time, say the same of a
machine that has other work, too.

Run: ``bin/_python engine benchmarks/scale.py [--concurrency 144 500 2000 10000] [--latency 15]``.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import random
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import msgspec
import numpy as np
import trio

from benchmarks.stand_in import stand_in
from protocol import config as configuration
from protocol.config import Config
from protocol.records import ToolCall, TrajectoryId
from rollout_engine.actors.connections import KeptConnections
from rollout_engine.actors.policy import GenerateRequest, Generation, Policy
from rollout_engine.actors.scripted import ScriptedPolicy
from rollout_engine.actors.vllm import VllmActor
from rollout_engine.engine import model_folder, open_setup
from rollout_engine.environments.registry import load_tasks
from rollout_engine.episode import run_episode
from rollout_engine.tokens.interpretation import render_call
from rollout_engine.warmstart.main import make_folder

TICK = 0.01
GROUP = 8
AROUND = 32
"""Tokens around each sampled turn of the long episode."""
SIGMA = 0.6
"""Spread of a turn's latency: the slowest of a hundred takes four times the median."""


@dataclass
class Slow:
    """A policy that takes its time: ``mean`` seconds a turn, log-normal."""

    policy: Policy
    mean: float
    rng: random.Random
    turns: int = 0

    async def generate(self, request: GenerateRequest) -> Generation:
        await trio.sleep(self.rng.lognormvariate(math.log(self.mean) - SIGMA**2 / 2, SIGMA))
        self.turns += 1
        return await self.policy.generate(request)


class Passes(trio.abc.Instrument):
    """CPU seconds of each pass of the event loop: nothing else runs meanwhile."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._began = time.thread_time()

    def after_io_wait(self, timeout: float) -> None:
        self._began = time.thread_time()

    def before_io_wait(self, timeout: float) -> None:
        self.seconds.append(time.thread_time() - self._began)


def rss() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def tiny_config(folder: str, tokens: int = 1024) -> Config:
    limits = {"episode": 3600, "agent_turns": 12, "user_turns": 6, "turn_tokens": 64, "episode_tokens": tokens}
    return configuration.resolve(
        {
            "run": "scale",
            "folder": folder,
            "model": {"folder": "base", "max_model_len": tokens},
            "learner": {"row_tokens": max(tokens, 4096)},
            "rollout": {"limits": limits},
        }
    )


async def scale(folder: str, concurrency: int, latency: float) -> dict[str, float]:
    """Open ``concurrency`` episodes at once, run twice as many."""
    config = tiny_config(folder)
    tasks = load_tasks(config.tasks.domains, "train", 160)
    total = max(2 * concurrency, 500)
    lags: list[float] = []
    peak, passed = 0, 0
    async with open_setup(config, None) as setup:
        policy = Slow(
            ScriptedPolicy.of_scripts(setup.template, {t.id: t.script for t in tasks}), latency, random.Random(0)
        )
        setup = replace(setup, policy=policy)
        limiter = trio.CapacityLimiter(concurrency)
        warm = replace(setup, policy=replace(policy, mean=0.001))
        for task in tasks:
            await run_episode(warm, task, TrajectoryId("scale", 1, 0, 0), 0)

        async def one(index: int) -> None:
            nonlocal passed
            async with limiter:
                id = TrajectoryId("scale", 0, index, 0)
                trajectory = await run_episode(setup, tasks[index % len(tasks)], id, 0)
            passed += trajectory.reward == 1.0

        async def tick() -> None:
            nonlocal peak
            while True:
                due = trio.current_time() + TICK
                await trio.sleep_until(due)
                lags.append(trio.current_time() - due)
                if len(lags) % 50 == 0:
                    peak = max(peak, rss())

        # What the ticker itself takes isn't the episodes' cost.
        idle = time.process_time()
        with trio.move_on_after(3):
            await tick()
        per_tick = (time.process_time() - idle) / len(lags)
        lags.clear()
        before = rss()
        passes = Passes()
        trio.lowlevel.add_instrument(passes)
        wall, cpu = time.perf_counter(), time.process_time()
        async with trio.open_nursery() as ticking:
            ticking.start_soon(tick)
            async with trio.open_nursery() as nursery:
                for index in range(total):
                    nursery.start_soon(one, index)
                    if index % GROUP == 0:  # as the engine does after each group
                        await trio.lowlevel.checkpoint()
            ticking.cancel_scope.cancel()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        cpu -= per_tick * len(lags)
        trio.lowlevel.remove_instrument(passes)
    p50, p99, worst = np.percentile(lags, [50, 99, 100]) * 1e3
    return {
        "passed": passed / total,
        "turns": policy.turns,
        "ms": cpu / policy.turns * 1e3,
        "load": cpu / wall,
        "kB": (peak - before) / concurrency / 1e3,
        "p50": p50,
        "p99": p99,
        "worst": worst,
        "longest": np.sort(passes.seconds)[-10:].mean() * 1e3,
        "wall": wall,
    }


@dataclass
class Timed:
    """Notes this process's CPU time at the end of each turn."""

    policy: Policy
    ends: list[float]

    async def generate(self, request: GenerateRequest) -> Generation:
        generation = await self.policy.generate(request)
        self.ends.append(time.process_time())
        return generation


async def long_episode(folder: str, turns: int, tokens: int) -> tuple[np.ndarray, int]:
    """CPU seconds of each turn of one episode that fills ``tokens`` in ``turns`` turns of equal length, over HTTP to
    a server that is instant; and how many tokens it came to."""
    config = tiny_config(folder, tokens + tokens // 10)
    task = load_tasks(config.tasks.domains, "train", 1)[0]
    call = next(line for line in task.script if isinstance(line, ToolCall))
    async with open_setup(config, None) as setup, httpx.AsyncClient(transport=KeptConnections(4.0)) as client:
        template = setup.template
        words, call = template.encode(" ".join(f"{n} so" for n in range(10_000))), template.encode(render_call(call))
        ids = [*words[: tokens // turns - len(call) - AROUND], *call, template.close_id]
        limits = msgspec.structs.replace(config.rollout.limits, agent_turns=turns, turn_tokens=tokens)
        with stand_in(ids) as url:
            policy = Timed(VllmActor(url, client, timeout=60, version=0), [])
            setup = replace(setup, policy=policy, limits=limits)
            trajectory = await run_episode(setup, task, TrajectoryId("scale", 0, 0, 0), 0)
    assert len(policy.ends) == turns, trajectory.finish
    return np.diff(policy.ends), len(trajectory.tokens.mask)


def _in_process(function, *args) -> object:
    """``trio.run(function, *args)`` in a fresh process, so that memory is counted from the start."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(trio.run, function, *args).result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--concurrency", type=int, nargs="*", default=[144, 500, 2000, 10_000])
    parser.add_argument("--latency", type=float, default=15.0, help="mean seconds that the actor takes for a turn")
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=130_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = tiny_config(folder)
        trio.run(make_folder, model_folder(config), load_tasks(config.tasks.domains, "train", 60), config)
        print("at once   turns  CPU ms/turn  CPU busy  kB/episode  lag p50   p99    worst   longest  passed   wall")
        for concurrency in options.concurrency:
            r = _in_process(scale, folder, concurrency, options.latency)
            print(
                f"{concurrency:7,} {r['turns']:7,} {r['ms']:12.2f} {r['load']:9.0%} {r['kB']:11.0f} {r['p50']:8.2f}"
                f" {r['p99']:5.1f} {r['worst']:7.1f} ms {r['longest']:6.1f} ms {r['passed']:7.1%} {r['wall']:5.0f} s",
                flush=True,
            )
        if options.turns:
            costs, tokens = _in_process(long_episode, folder, options.turns, options.tokens)
            tenths = [f"{np.median(part) * 1e3:.2f}" for part in np.array_split(costs, 10)]
            print(f"one episode of {options.turns} turns and {tokens:,} tokens, over HTTP: CPU ms a turn, by tenths")
            print("  " + "  ".join(tenths))


if __name__ == "__main__":
    main()
