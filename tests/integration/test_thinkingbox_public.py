"""The public ThinkingBox data through whole episodes, where checkouts of it are named in the environment."""

import os
from pathlib import Path

import pytest
import trio

from protocol import config as configuration
from rollout_engine.curation.candidates import heldout_tasks
from rollout_engine.engine import open_runner
from rollout_engine.environments.task import Say
from rollout_engine.environments.thinkingbox.dataset import load_dataset
from rollout_engine.environments.thinkingbox.places import places
from rollout_engine.environments.thinkingbox.task import ThinkingBoxTask
from rollout_engine.errors import ConfigurationError
from rollout_engine.evaluation.verification import some_model, verify

CONFIGS = Path(__file__).parents[2] / "configs"
SCRIPTED = ("judge.kind=agreeable", "rollout.user.kind=scripted")

pytestmark = pytest.mark.skipif(
    not (os.environ.get("ENDSTATE_THINKINGBOX") and os.environ.get("ENDSTATE_THINKINGBOX_DATA")),
    reason="ENDSTATE_THINKINGBOX and ENDSTATE_THINKINGBOX_DATA don't name checkouts",
)


async def test_the_benchmarks_own_solutions_pass_and_doing_nothing_fails_but_once():
    config = configuration.load(CONFIGS / "thinkingbox-bench.yaml", SCRIPTED)
    tasks = heldout_tasks(config)
    assert len(tasks) == 507
    findings = await verify(config, tasks, 16, lambda: None)
    faults = [finding.fault for finding in findings if finding.fault]
    assert len(faults) == 1 and "test_he_017: doing nothing passes" in faults[0]
    assert {finding.oracle.ranking for finding in findings} != {""}


def test_the_benchmark_is_refused_for_training():
    config = configuration.load(
        CONFIGS / "thinkingbox-bench.yaml", ["tasks.thinkingbox.train=[sandbox_consulting_group1.py]"]
    )
    with pytest.raises(ConfigurationError, match="may be evaluated on but not trained on"):
        from rollout_engine.curation.candidates import training_candidates

        training_candidates(config)


async def test_every_development_case_loads_and_runs():
    config = configuration.load(CONFIGS / "thinkingbox-dev.yaml", SCRIPTED)
    where = places(config.tasks.thinkingbox)
    dataset = load_dataset(where.data)
    files = [where.data / "test_case" / name for name in config.tasks.thinkingbox.heldout]
    # Those that are tagged skip as well.
    cases = [dataset.case(file, name, dataset.agent()) for file in files for name in dataset.entries(file)]
    assert len(cases) == 40
    tasks = [ThinkingBoxTask(case, "heldout") for case in cases]
    played = []
    async with some_model(config) as config:
        script = (Say("Which one do you mean?"), Say("I have looked into it. <DONE>"))
        async with open_runner(config, {task.id: script for task in tasks}) as runner:
            limiter = trio.CapacityLimiter(8)

            async def one(task):
                async with limiter:
                    played.append(await runner(task, 0, 0, scope="dev"))

            async with trio.open_nursery() as nursery:
                for task in tasks:
                    nursery.start_soon(one, task)
    assert len(played) == 40 and {trajectory.finish for trajectory in played} == {"no_user_llm"}
    assert 0 < sum(trajectory.reward == 0.0 for trajectory in played)
