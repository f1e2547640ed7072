"""How many episodes a second the whole engine runs with an instant policy, and what an episode costs.

Real sessions, databases, tokens, interpretation, users and grading; only the model is scripted, so that what is
measured is ours. Prints one line a concurrency. Run: ``bin/_python engine benchmarks/engine.py MODEL_FOLDER``.
"""

from __future__ import annotations

import sys
import time

import trio

from protocol import config as configuration
from protocol.records import TrajectoryId
from rollout_engine.actors.scripted import ScriptedPolicy
from rollout_engine.engine import open_setup
from rollout_engine.environments.registry import load_tasks
from rollout_engine.episode import run_episode

EPISODES = 720


async def main(folder: str) -> None:
    tree = {"run": "benchmark", "model": {"folder": folder, "max_model_len": 1024}}
    config = configuration.resolve(tree)
    tasks = load_tasks(config.tasks.domains, "train", 160)
    scripts = {task.id: task.script for task in tasks}
    for concurrency in (1, 16, 144, 500):
        async with open_setup(config, None) as setup:
            policy = ScriptedPolicy.of_scripts(setup.template, scripts)
            setup = type(setup)(**(vars(setup) | {"policy": policy}))
            limiter, passed = trio.CapacityLimiter(concurrency), 0

            async def one(index: int, setup=setup, limiter=limiter) -> None:
                nonlocal passed
                async with limiter:
                    task = tasks[index % len(tasks)]
                    trajectory = await run_episode(setup, task, TrajectoryId("benchmark", 0, index, 0), 0)
                passed += trajectory.reward == 1.0

            wall, cpu = time.perf_counter(), time.process_time()
            async with trio.open_nursery() as nursery:
                for index in range(EPISODES):
                    nursery.start_soon(one, index)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        print(
            f"{concurrency:>4} at once: {EPISODES / wall:7.1f} episodes/s, {cpu / EPISODES * 1e3:6.2f} CPU ms an "
            f"episode, {passed}/{EPISODES} passed"
        )


if __name__ == "__main__":
    trio.run(main, str(sys.argv[1]))
