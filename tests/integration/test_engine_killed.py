"""Kill -9 an engine in mid-step, over and over, over a real log: every attempt ends in one bucket (rules 3 and 12)."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import trio

from protocol import config as configuration
from protocol.bus import connect
from protocol.records import PolicyVersion, Probe

pytestmark = pytest.mark.nats

ROOT = Path(__file__).parents[2]

ENGINE = """
import random, sys
from types import SimpleNamespace
import trio
from protocol import config as configuration
from protocol.bus import connect
from protocol.records import Trajectory, Verdict
from rollout_engine.engine import Engine
from rollout_engine.errors import UserError

tasks = [SimpleNamespace(id=f"t{i}") for i in range(12)]
told = ("step", "pool", "wave", "episode", "failed", "outage", "group", "batch")
silent = SimpleNamespace(**dict.fromkeys(told, lambda *args: None))

async def play(setup, task, id, version):
    rng = random.Random(f"{task.id}/{id}")
    await trio.sleep(rng.uniform(0.05, 0.4))
    if rng.random() < 0.1:
        raise UserError("scripted")
    reward = float(task.id in ("t0", "t1", "t2") or rng.random() < 0.5)
    return Trajectory(id, task.id, "scripted", "", version, (), Verdict(reward), "done")

async def served(version):
    pass

async def main():
    config = configuration.load(sys.argv[1])
    async with connect(config.nats, config.run) as bus:
        await Engine(config, tasks, None, bus, silent, served, play=play).run()

trio.run(main)
"""


def start(path):
    return subprocess.Popen([sys.executable, "-c", ENGINE, str(path)], cwd=ROOT, env={"PYTHONPATH": str(ROOT)})


async def killed_at(bus, process, step, trajectories):
    """Kill the engine once the step has so many trajectories on the log."""
    while len(await bus.trajectories(step, arrays=False)) < trajectories:
        assert process.poll() is None, "the engine ended before it could be killed"
        await trio.sleep(0.02)
    process.kill()
    process.wait()


async def test_attempts_of_killed_engines_are_cancelled_and_the_ledger_follows_from_the_log(nats_url, run, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        f"run: {run}\nnats: {{url: '{nats_url}'}}\nlearner: {{steps: 2}}\n"
        "rollout: {groups: 4, group_size: 4, max_groups: 20, concurrency: 12, retries: {default: {backoff: 0.1}}}\n"
    )
    config = configuration.load(path)
    with trio.fail_after(120):
        async with connect(config.nats, run) as bus:
            for version in range(2):
                await bus.publish_policy(PolicyVersion(run, version, "nowhere", {}, Probe(b"", b"", 0.05)))
            for step, count in [(0, 0), (0, 3), (0, 9), (1, 2)]:
                process = start(path)
                await killed_at(bus, process, step, count)
            process = start(path)
            assert await trio.to_thread.run_sync(process.wait) == 0
            cancelled = 0
            for step in range(2):
                batch = await bus.batch(step)
                assert batch.outcome == "full" and batch.ledger.trained == 16
                records = await bus.attempts(step)
                started = {attempt for record in records for attempt in record.started}
                failed = {failure[:3]: failure[3] for record in records for failure in record.failed}
                logged = {t.id for t in await bus.trajectories(step, arrays=False)}
                ended = {(id.group, id.sample, id.attempt) for id in logged}
                assert ended <= started and not ended & failed.keys()
                assert batch.ledger.started == len(started)
                assert batch.ledger.system_error == dict(sorted(Counter(failed.values()).items()))
                assert batch.ledger.cancelled == len(started - ended - failed.keys())
                assert {id for group in batch.groups for id in group.trajectories} <= logged
                cancelled += batch.ledger.cancelled
            assert cancelled >= 4, "engines were killed with episodes in flight"
