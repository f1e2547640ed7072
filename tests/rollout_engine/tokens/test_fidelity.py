"""A recorded stream is checked from its messages and arrays alone."""

import msgspec
import numpy as np
import pytest

from protocol.records import TokenArrays, TrajectoryId
from rollout_engine.actors.policy import Sampling
from rollout_engine.actors.scripted import ScriptedPolicy
from rollout_engine.environments.catalogue import domain
from rollout_engine.environments.native import NativeEnvironment
from rollout_engine.environments.registry import load_tasks
from rollout_engine.episode import EpisodeSetup, run_episode
from rollout_engine.tokens.fidelity import trajectory_problems
from rollout_engine.users import scripted_user

TASKS = load_tasks(("travel", "retail"), "train", 60, 0)


async def recorded(tiny_config, tiny_template, task):
    policy = ScriptedPolicy(tiny_template, lambda _: task.script)
    setup = EpisodeSetup(
        policy,
        tiny_template,
        NativeEnvironment(scripted_user, tiny_config.rollout.limits),
        Sampling(),
        tiny_config.rollout.limits,
    )
    return await run_episode(setup, task, TrajectoryId("r", 0, 0, 0), 0)


async def test_what_the_engine_records_is_what_the_template_writes(tiny_config, tiny_template):
    for task in TASKS:
        trajectory = await recorded(tiny_config, tiny_template, task)
        assert trajectory_problems(tiny_template, domain(task.domain).tools, trajectory) == []


@pytest.mark.parametrize("damage", ["separator", "observation", "mask"])
async def test_damage_is_found(tiny_config, tiny_template, damage):
    task = TASKS[0]
    trajectory = await recorded(tiny_config, tiny_template, task)
    tokens = trajectory.tokens.unpack()
    ids, mask = tokens.ids.copy(), tokens.mask.copy()
    ends = np.flatnonzero(np.diff(mask.astype(int)) == -1)
    if damage == "separator":  # the published stack's defect: no newline between turns
        ids, mask = np.delete(ids, ends[0] + 1), np.delete(mask, ends[0] + 1)
    elif damage == "observation":
        ids[ends[0] + 5] = ids[ends[0] + 5] + 1
    else:
        start = np.flatnonzero(np.diff(mask.astype(int)) == 1)[0] + 1
        mask[start : ends[0] + 1] = 0
    sampled = int(mask.sum())
    arrays = TokenArrays.pack(ids, mask, tokens.logprobs[:sampled], tokens.versions[:sampled])
    [problem] = trajectory_problems(
        tiny_template, domain(task.domain).tools, msgspec.structs.replace(trajectory, tokens=arrays)
    )
    expected = "differs from the template's at character" if damage != "mask" else "runs of sampled tokens"
    assert expected in problem
