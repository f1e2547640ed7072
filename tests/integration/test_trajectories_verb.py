"""``bin/trajectories`` over a real server and over exported files."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from protocol.bus import connect
from protocol.records import Batch, GroupRecord, Ledger, Verdict
from protocol.server import free_port

pytestmark = pytest.mark.nats

VERB = Path(__file__).parents[2] / "bin" / "trajectories"


def _verb(*arguments) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [VERB, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        env={"COLUMNS": "200", "PATH": "/usr/bin:/bin"},
    )


@pytest.fixture
def logged(nats_config, run, make_trajectory) -> str:
    """A run of two steps of two samples, of which one failed; the second step has no batch yet."""

    async def publish():
        async with connect(nats_config, run) as bus:
            for step in range(2):
                made = [
                    make_trajectory(run, step, 0, 0, verdict=Verdict(1.0)),
                    make_trajectory(run, step, 0, 1, family="upgrade", task="travel/upgrade/train/1"),
                ]
                for trajectory in made:
                    await bus.publish_trajectory(trajectory)
                if step == 0:
                    group = GroupRecord(0, made[0].task, tuple(t.id for t in made), (1.0, 0.0), "trained")
                    await bus.publish_batch(Batch(run, 0, 0, 2, (group,), Ledger(2, trained=2)))

    asyncio.run(publish())
    return run


def test_list_and_its_filters(logged, nats_url):
    done = _verb("list", logged, "--nats", nats_url)
    assert done.returncode == 0, done.stderr
    assert "4 trajectories, 2 with full reward" in done.stdout
    assert done.stdout.count("trained") == 2
    for arguments, count in (
        (("--step", 1), 2),
        (("--failed",), 2),
        (("--family", "upgrade", "--step", 0), 1),
        (("--family", "none"), 0),
    ):
        assert f"{count} trajectories" in _verb("list", logged, "--nats", nats_url, *arguments).stdout


def test_the_server_of_a_configuration(logged, nats_url, tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text(f"run: {logged}\nnats: {{url: '{nats_url}'}}\n")
    assert "4 trajectories" in _verb("list", logged, "--config", config).stdout


def test_show(logged, nats_url):
    for id in (f"{logged}/1/0/1", f"{logged}/1/0/1/0"):
        done = _verb("show", id, "--nats", nats_url)
        assert done.returncode == 0, done.stderr
        assert '→ find({"booking": "B7"})' in done.stdout
        assert "payments: wrong amount" in done.stdout
    for id, fault in (
        (f"{logged}/1/0/9", "no trajectory"),
        (f"{logged}/1/0/1/7", "no trajectory"),
        ("nonsense", "is not RUN/STEP/GROUP/SAMPLE"),
    ):
        done = _verb("show", id, "--nats", nats_url)
        assert done.returncode == 2
        assert fault in done.stderr


def test_export_verify_and_reading_the_files(logged, nats_url, tmp_path):
    done = _verb("export", logged, "--out", tmp_path, "--nats", nats_url)
    assert done.returncode == 0, done.stderr
    assert [Path(line).name for line in done.stdout.split()] == [
        "step-000000.jsonl",
        "step-000001.jsonl",
        "policies.jsonl",
    ]
    assert "step-000000.jsonl: whole (trajectory: 2, batch: 1)" in _verb("verify", tmp_path).stdout
    assert "4 trajectories" in _verb("list", logged, "--files", tmp_path).stdout
    assert "payments: wrong amount" in _verb("show", f"{logged}/0/0/1", "--files", tmp_path).stdout
    file = tmp_path / "step-000000.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"reward":0.0', b'"reward":1.0'))
    for done in (_verb("verify", tmp_path), _verb("list", logged, "--files", tmp_path)):
        assert done.returncode == 2
        assert f"{file}:3: damaged" in done.stderr
        assert "export the run again" in done.stderr


def test_faults_end_in_a_message_and_exit_code_two(logged, nats_url):
    for arguments, fault in (
        (("list", logged, "--nats", f"nats://127.0.0.1:{free_port()}"), "Start one with bin/nats"),
        (("list", "no-such-run", "--nats", nats_url), "holds no run 'no-such-run'"),
        (("list", "No Slug", "--nats", nats_url), "is not a slug"),
        (("verify", "absent.jsonl"), "absent.jsonl: cannot be read"),
    ):
        done = _verb(*arguments)
        assert done.returncode == 2, arguments
        assert fault in done.stderr
        assert "Traceback" not in done.stderr
