"""The main job's order, its reuse of what is there, and its ends, with a stand-in for every verb."""

import shlex
import sys
from pathlib import Path

import pytest
import yaml

from protocol import config as configuration
from protocol.server import free_port
from rollout_engine.errors import ConfigurationError
from rollout_engine.quickstart import children
from rollout_engine.quickstart.children import ChildFailed
from rollout_engine.quickstart.main import Job
from rollout_engine.quickstart.stages import claim_folder

FAKE = Path(__file__).with_name("fake_verb.py")
VERBS = "nats demonstrations warmstart actor probe select evaluate learner rollouts report".split()
ALL = ["demonstrations", "warmstart", "probe", "select", "evaluate base", "rollouts", "evaluate trained", "report"]


@pytest.fixture
def job(tmp_path, nats_url, run, monkeypatch):
    """Factory of jobs on one run's folder, as reruns are."""
    (tmp_path / "bin").mkdir()
    python = shlex.join(["env", f"PYTHONPATH={FAKE.parents[3]}", sys.executable, str(FAKE)])
    for verb in VERBS:
        (tmp_path / "bin" / verb).write_text(f'#!/bin/sh\nexec {python} {verb} "$@"\n')
        (tmp_path / "bin" / verb).chmod(0o755)
    monkeypatch.setattr(children, "ROOT", tmp_path)
    tree = {"run": run, "folder": str(tmp_path / "runs"), "nats": {"url": nats_url}, "model": {"folder": "base"}}
    tree |= {"actor": {"port": free_port()}, "learner": {"steps": 3}}
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(tree))

    def make(*changes: str) -> Job:
        config = configuration.load(file, changes)
        claim_folder(config)
        return Job(config, ("--config", str(file), *(f"--set={change}" for change in changes)))

    return make


def calls(job: Job) -> list[str]:
    """Verbs that ran since the last look, in order; those in the background are left out."""
    file = job.config.path / "calls.txt"
    lines = file.read_text().splitlines()
    file.unlink()
    return [line for line in lines if line not in ("nats", "actor", "learner")]


async def test_stages_run_in_order_and_a_second_run_reuses_them(job):
    first = job()
    await first.run()
    assert calls(first) == ALL
    again = job()
    await again.run()
    assert calls(again) == ["report"]
    assert set(again.watch.seconds) >= {"demonstrations", "warmstart", "actor", "probe", "train", "report"}


@pytest.mark.parametrize("stage", ["warmstart", "select", "evaluate base", "rollouts", "evaluate trained"])
async def test_a_stage_that_fails_is_named_and_a_rerun_goes_on_from_it(job, stage):
    broken = job()
    marker = broken.config.path / f"{stage}.fails"
    marker.touch()
    with pytest.raises(ExceptionGroup) as failure:
        await broken.run()
    assert failure.group_contains(ChildFailed, match=f"bin/{stage.split()[0]} ended with exit code 1")
    assert calls(broken) == ALL[: ALL.index(stage) + 1]
    marker.unlink()
    again = job()
    await again.run()
    # The pool is probe and selection in one stage.
    assert calls(again) == ALL[ALL.index("probe" if stage == "select" else stage) :]


async def test_a_learner_that_does_not_end_is_given_up_at_its_bound(job):
    outage = ("probe=0.05", "max_probe=0.1", "longest=0.2")
    stuck = job("learner.batch_timeout=0.5", "rollout.batch=0.3", *(f"rollout.outage.{bound}" for bound in outage))
    (stuck.config.path / "learner.hangs").touch()
    with pytest.raises(ExceptionGroup) as failure:
        await stuck.run()
    assert failure.group_contains(ChildFailed, match=r"learner.batch_timeout = 0.5 s(?s:.*)learner.log")


async def test_the_base_policy_is_not_evaluated_once_training_has_begun(job):
    trained = job()
    await trained.run()
    (trained.config.path / "evaluation/base.done").unlink()
    with pytest.raises(ExceptionGroup) as failure:
        await job().run()
    assert failure.group_contains(ConfigurationError, match="--fresh")
