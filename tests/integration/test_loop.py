"""The whole loop on real parts, with every process killed once: nothing is lost and nothing is trained twice.

One small run: a base policy that is barely warm, vLLM, NATS, the learner and the engine as `bin/quickstart`
supervises them. While it trains, kill -9 hits the learner, the engine, vLLM and NATS, one each.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import trio
import yaml
from safetensors.numpy import load_file

from benchmarks.chaos.base import configure
from protocol import config as configuration
from protocol import log
from protocol.bus import connect

ROOT = Path(__file__).resolve().parents[2]
STEPS = 7

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.nats,
    pytest.mark.skipif(not (ROOT / ".venv/actor/bin/python").exists(), reason="no actor environment: run bin/setup"),
]


@pytest.fixture(scope="module")
def run(barely_warm, tmp_path_factory):
    folder = tmp_path_factory.mktemp("loop")
    shutil.copytree(barely_warm / "base" / "base", folder / "loop" / "base")
    file = configure(folder, "loop", STEPS, staleness=0)
    tree = yaml.safe_load(file.read_text())
    tree["evaluation"] = {"repeat": 2}
    file.write_text(yaml.safe_dump(tree))
    config = configuration.load(file)
    job = [str(ROOT / "bin/_python"), "engine", "-m", "rollout_engine.quickstart.main", "--config", str(file)]
    output = (folder / "output.txt").open("w")
    process = subprocess.Popen(job, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        killed = trio.run(kill_each_once, config, process)
        code = process.wait(timeout=600)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)
    text = (folder / "output.txt").read_text()
    sys.stdout.write(text)
    assert code == 0, text[-3000:]
    return config, killed, text


def descendants(process: subprocess.Popen, word: str) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            line = " ".join(child.cmdline())
        except psutil.Error:
            continue
        if word in line:
            found.append(child)
    return found


KILLS = {1: "learner.main", 2: "rollout_engine.cli.rollouts", 3: "rollout_engine.actors.serve", 5: "nats-server"}
"""After the manifest of which step kill -9 hits which process."""


async def kill_each_once(config, process) -> dict[int, str]:
    killed: dict[int, str] = {}
    with trio.fail_after(900):
        for step, word in KILLS.items():
            while not await has_batch(config, step):
                assert process.poll() is None, "the job ended before everything was killed"
                await trio.sleep(0.1)
            victims = descendants(process, word)
            assert victims, f"no process {word} to kill"
            for victim in victims:
                victim.kill()
            killed[step] = word
    return killed


async def has_batch(config, step) -> bool:
    try:
        async with connect(config.nats, config.run, create=False) as bus:
            return await bus.batch(step) is not None
    except Exception:  # the server is being killed: whatever comes of that means "not yet", and every wait is bounded
        return False


async def the_log(config, folder):
    async with connect(config.nats, config.run) as bus:
        paths = await log.export(bus, folder)
        return paths, await bus.policies()


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    config, *_ = run
    folder = tmp_path_factory.mktemp("exported")
    server = subprocess.Popen(
        [str(ROOT / "bin/nats"), "--folder", str(config.path / "nats"), "--url", config.nats.url],
        stdout=subprocess.DEVNULL,
    )
    try:
        while not trio.run(has_batch, config, STEPS - 1):
            time.sleep(0.2)
        return trio.run(the_log, config, folder)
    finally:
        server.terminate()
        server.wait(timeout=30)


def test_every_process_was_killed_and_the_run_ended(run):
    config, killed, text = run
    assert set(killed) == set(KILLS)
    assert "was killed (signal 9); starting it again" in text
    assert (config.path / "report.json").exists()


def test_the_ledger_sums_and_nothing_is_trained_twice(exported):
    paths, policies = exported
    found = log.read(paths)
    assert sorted(found.batches) == list(range(STEPS))
    trained = []
    for batch in found.batches.values():
        batch.ledger.check()
        groups = [group for group in batch.groups if group.bucket == "trained"]
        assert batch.ledger.trained == len(groups) * batch.group_size
        trained += [id for group in groups for id in group.trajectories]
        for group in batch.groups:
            assert len(group.trajectories) == batch.group_size
            assert [found.trajectories[id].reward for id in group.trajectories] == list(group.rewards)
    assert len(trained) == len(set(trained)) > 0
    assert [policy.version for policy in policies] == list(range(STEPS + 1)) and policies[-1].final


def test_a_replay_of_the_log_reaches_the_same_weights_bit_for_bit(run, exported, tmp_path):
    config, *_ = run
    paths, policies = exported
    (tmp_path / config.run).mkdir()
    os.symlink(config.path / "base", tmp_path / config.run / "base")
    replay = ["--config", str(Path(config.folder) / "loop.yaml"), "--set", f"folder={tmp_path}", "--replay"]
    subprocess.run([str(ROOT / "bin/learner"), *replay, *map(str, paths)], check=True)
    live = load_file(Path(policies[-1].folder) / "model.safetensors")
    [again] = (tmp_path / config.run / "weights").glob(f"v*{STEPS}")
    replayed, base = load_file(again / "model.safetensors"), load_file(config.path / "base" / "model.safetensors")
    for name, tensor in live.items():
        np.testing.assert_array_equal(tensor, replayed[name], err_msg=name)
    assert any((live[name] != base[name]).any() for name in live), "nothing was learnt, so nothing was compared"


def test_no_process_outlives_the_job(run):
    config, *_ = run
    port = str(config.actor.port)
    left = [p.info for p in psutil.process_iter(["pid", "cmdline"]) if port in " ".join(p.info["cmdline"] or ())]
    assert left == []


def test_every_episode_is_faithful_to_the_template(run, exported):
    config, *_ = run
    server = subprocess.Popen(
        [str(ROOT / "bin/nats"), "--folder", str(config.path / "nats"), "--url", config.nats.url],
        stdout=subprocess.DEVNULL,
    )
    try:
        while not trio.run(has_batch, config, STEPS - 1):
            time.sleep(0.2)
        verb = [str(ROOT / "bin/fidelity"), "--config", str(Path(config.folder) / "loop.yaml")]
        result = subprocess.run(verb, capture_output=True, text=True)
    finally:
        server.terminate()
        server.wait(timeout=30)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 streams differ" in " ".join(result.stdout.split())
