"""The engine and a learner in scripted time: what overlaps, how stale a token gets, and a restart under new weights."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
import trio

from rollout_engine.actors.policy import Sampling
from rollout_engine.actors.scripted import ScriptedPolicy
from rollout_engine.engine import Engine
from rollout_engine.environments.native import NativeEnvironment
from rollout_engine.environments.registry import load_tasks
from rollout_engine.episode import EpisodeSetup
from rollout_engine.users import scripted_user
from tests.rollout_engine.memory import Killed, MemoryLog

TASKS = load_tasks(("travel", "retail"), "train", 40, 0)
BY_ID = {task.id: task for task in TASKS}
GROUPS, SIZE, STEPS, ROLLOUT = 2, 4, 5, 10.0


class Log(MemoryLog):
    """A log with a learner at it, whose updates take the seconds of ``updates`` (the last for all further ones)."""

    def __init__(self, updates):
        super().__init__()
        self.updates, self.version, self.changed = updates, -1, trio.Event()

    async def learn(self):
        for version in range(STEPS + 1):
            if version:
                while version - 1 not in self.batches:
                    await self.changed.wait()
                await trio.sleep(self.updates[min(version, len(self.updates)) - 1])
            self.version = version
            self.wake()

    async def wait_policy(self, version):
        while self.version < version:
            await self.changed.wait()

    async def publish_batch(self, batch):
        await super().publish_batch(batch)
        self.wake()

    def wake(self):
        self.changed.set()
        self.changed = trio.Event()


class Policy:
    """At the newest version of ``log``; an episode takes ``ROLLOUT`` seconds, and the odd ones of a group fail."""

    def __init__(self, log, template):
        self.log, self.template, self.playing, self.asked = log, template, {}, set()

    async def generate(self, request):
        task, _, place = request.episode.partition("#")
        self.asked.add(request.episode)
        wrong = int(place.split("/")[3]) % 2
        script = BY_ID[task].slips[0].script if wrong else BY_ID[task].script
        await trio.sleep(ROLLOUT / len(script))
        policy = self.playing.setdefault(request.episode, ScriptedPolicy(self.template, lambda _: script))
        generation = await policy.generate(request)
        return replace(generation, versions=[self.log.version] * len(generation.ids))


class Quiet:
    def __getattr__(self, name):
        return lambda *_: None


@pytest.fixture
def make_engine(tiny_config, tiny_template):
    def make(log, staleness):
        rollout = msgspec.structs.replace(
            tiny_config.rollout, groups=GROUPS, group_size=SIZE, max_staleness=staleness, wave_confidence=0.0
        )
        learner = msgspec.structs.replace(tiny_config.learner, steps=STEPS)
        config = msgspec.structs.replace(tiny_config, rollout=rollout, learner=learner)
        policy = Policy(log, tiny_template)
        environment = NativeEnvironment(scripted_user, rollout.limits)
        setup = EpisodeSetup(policy, tiny_template, environment, Sampling(), rollout.limits, staleness)
        return Engine(config, TASKS, setup, log, Quiet(), log.wait_policy)

    return make


async def run(engine, log):
    """Until the learner has made its last update."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.learn)
        await engine.run()


def ages(log):
    """Step -> the set of its tokens' ages, in updates."""
    out = {}
    for (step, _, _), trajectory in log.logged.items():
        out.setdefault(step, set()).update((step - np.unique(trajectory.tokens.unpack().versions)).tolist())
    return out


@pytest.mark.parametrize(
    ("staleness", "updates", "seconds"),
    [
        (0, [10], 5 * 20),
        (1, [10], 10 + 5 * 10),
        (2, [10], 10 + 5 * 10),
        (1, [4], 5 * 10 + 4),
        (1, [25], 10 + 5 * 25),
        (1, [10, 40, 10], 10 + 4 * 10 + 40),
        (2, [10, 30, 5, 5, 5], 10 + 10 + 30 + 10 + 5),
    ],
)
async def test_updates_and_rollouts_overlap_and_no_token_is_older_than_the_bound(
    make_engine, autojump_clock, staleness, updates, seconds
):
    log = Log(updates)
    await run(make_engine(log, staleness), log)
    assert trio.current_time() == pytest.approx(seconds, abs=0.1)
    found = ages(log)
    assert sorted(found) == list(range(STEPS))
    assert all(0 <= age <= min(step, staleness) for step, of_step in found.items() for age in of_step)
    if staleness == 0:
        assert set().union(*found.values()) == {0}
    for step, batch in log.batches.items():
        batch.ledger.check()
        assert batch.outcome == "full" and step - batch.policy_version == max(found[step])


async def test_weights_that_change_in_mid_step_are_told_apart_token_by_token(make_engine, autojump_clock):
    log = Log([5])
    await run(make_engine(log, 1), log)
    assert ages(log) == {0: {0}} | {step: {0, 1} for step in range(1, STEPS)}
    for group in log.batches[2].groups:
        assert group.versions == (1, 2)


async def test_an_engine_killed_in_mid_step_keeps_what_older_weights_sampled(make_engine, autojump_clock):
    log = Log([5])
    log.stop_after = 2 * GROUPS * SIZE + 3
    with pytest.raises(BaseExceptionGroup) as killed:
        await run(make_engine(log, 1), log)
    assert killed.group_contains(Killed)
    log.stop_after, kept = None, dict(log.logged)
    log.version = 2  # the learner has gone on meanwhile
    engine = make_engine(log, 1)
    await engine.run_step(2)
    assert len(engine.setup.policy.asked) == GROUPS * SIZE - 3
    assert all(log.logged[place] is trajectory for place, trajectory in kept.items())
    assert ages(log)[2] == {0, 1} and log.batches[2].policy_version == 1
