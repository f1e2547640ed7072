"""What a run does when a service it needs is gone: it says so, waits, probes, and ends as if nothing had been.

Real sessions, databases, tokens and grading; the services that fail are scripted, and ten minutes are simulated time.
"""

from __future__ import annotations

import io
from contextlib import asynccontextmanager

import msgspec
import pytest
import trio
from rich.console import Console

from protocol.config import Outage, Retries, Retry
from protocol.records import Message
from rollout_engine.actors.policy import Sampling
from rollout_engine.actors.scripted import ScriptedPolicy
from rollout_engine.cli.progress import StepDisplay
from rollout_engine.engine import Engine
from rollout_engine.environments.native import NativeEnvironment, NativeStage
from rollout_engine.environments.registry import load_tasks
from rollout_engine.episode import EpisodeSetup
from rollout_engine.errors import ActorError, UserError
from rollout_engine.users import scripted_user
from tests.rollout_engine.memory import MemoryLog

TASKS = load_tasks(("travel", "retail"), "train", 40, 0)
BY_ID = {task.id: task for task in TASKS}
GROUPS, SIZE = 6, 4
DOWN = 600.0
"""Seconds."""


class Service:
    """Something that every episode needs once, about five seconds in, and that is down from 7 s to 607 s."""

    def __init__(self):
        self.begin = trio.current_time()
        self.refused = 0

    @property
    def down(self):
        up = trio.current_time() - self.begin
        refused = 7.0 < up < 7.0 + DOWN
        self.refused += refused
        return refused


class Policy:
    """Takes a second a turn. Plays the oracle on even samples and the task's main slip on odd ones."""

    def __init__(self, template, service=None):
        self._template, self._service, self._played = template, service, {}

    async def generate(self, request):
        task, _, place = request.episode.partition("#")
        await trio.sleep(1.0 + 3.0 * (request.episode not in self._played))
        if self._service and self._service.down:
            error = ActorError("answered 429: too many requests")
            error.retry_after = 45.0
            raise error
        if request.episode not in self._played:
            script = BY_ID[task].slips[0].script if int(place.split("/")[3]) % 2 else BY_ID[task].script
            self._played[request.episode] = ScriptedPolicy(self._template, lambda _: script)
        return await self._played[request.episode].generate(request)


class AbsentUser:
    """A user's model that can't be reached for a while."""

    calls = ()

    def __init__(self, task, service):
        self._user, self._service = scripted_user(task), service

    async def reply(self, messages: tuple[Message, ...]):
        if self._service.down:
            raise UserError("user model at http://models: ConnectError")
        return await self._user.reply(messages)


class HangingGrader(NativeEnvironment):
    """Its verdicts don't come for a while."""

    def __init__(self, service, *args):
        super().__init__(*args)
        self._service = service

    @asynccontextmanager
    async def open(self, task, id, seed):
        async with super().open(task, id, seed) as stage:
            yield _Hanging(stage, self._service)


class _Hanging:
    def __init__(self, stage: NativeStage, service):
        self._stage, self._service = stage, service

    def __getattr__(self, name):
        return getattr(self._stage, name)

    async def grade(self, state, play):
        if self._service.down:
            await trio.sleep_forever()
        return await self._stage.grade(state, play)


def settings(config):
    rollout = msgspec.structs.replace(
        config.rollout,
        groups=GROUPS,
        group_size=SIZE,
        concurrency=8,
        wave_confidence=0.0,
        batch=120.0,
        retries=Retries(Retry(times=2, backoff=0.5)),
        outage=Outage(errors=6, among=8, probe=5.0, max_probe=60.0),
    )
    learner = msgspec.structs.replace(config.learner, steps=1)
    return msgspec.structs.replace(config, rollout=rollout, learner=learner)


@pytest.mark.parametrize("kind", ["user", "actor", "grader"])
async def test_ten_minutes_without_a_service_cost_ten_minutes(kind, tiny_config, tiny_template, autojump_clock):
    config, log, output = settings(tiny_config), MemoryLog(), io.StringIO()
    service = Service()
    limits = config.rollout.limits

    def make_user(task):
        return AbsentUser(task, service) if kind == "user" else scripted_user(task)

    environment = (
        HangingGrader(service, make_user, limits) if kind == "grader" else NativeEnvironment(make_user, limits)
    )
    policy = Policy(tiny_template, service if kind == "actor" else None)
    setup = EpisodeSetup(policy, tiny_template, environment, Sampling(), limits)

    async def served(version):
        pass

    with StepDisplay(config, Console(file=output, width=200)) as display:
        await Engine(config, TASKS, setup, log, display, served).run()
    batch = log.batches[0]
    print(output.getvalue())  # for the curious: pytest -s

    # Nothing is lost, scored as a failure or left out: the batch is what it would have been.
    assert batch.outcome == "full" and batch.waves == 1
    assert [group.group for group in batch.groups] == list(range(GROUPS))
    assert all(group.rewards == (1.0, 0.0) * (SIZE // 2) for group in batch.groups)
    assert batch.ledger.trained == GROUPS * SIZE and batch.ledger.system_error == {kind: service.refused}
    assert batch.ledger.cancelled == batch.ledger.surplus == 0
    # Few episodes were spent on finding out, and the step's own 120 s were not spent at all.
    assert service.refused <= 30
    assert DOWN < batch.seconds < DOWN + 120
    # The terminal said what was going on.
    said = output.getvalue()
    assert f"outage of {kind} for 0 s" in said and "launches pause, next probe in" in said
    assert "a probe succeeded, launches resume step by step" in said and f"outage of {kind} is over" in said
    assert f"system errors ({kind})" in said
    told = [data["open"] for event, data in log.events if event == "outage"]
    assert told[0][0]["kind"] == kind and told[-1] == []
