"""One episode on a real session: what the policy does is scored, what it can't cause is raised."""

from dataclasses import replace

import pytest
import trio

from protocol.records import Message, ModelCall, ToolCall, TrajectoryId, Verdict
from rollout_engine.actors.policy import Generation, Sampling
from rollout_engine.actors.scripted import ScriptedPolicy
from rollout_engine.environments.environment import Ended
from rollout_engine.environments.native import NativeEnvironment, NativeStage
from rollout_engine.environments.registry import load_tasks
from rollout_engine.environments.task import Say
from rollout_engine.episode import EpisodeSetup, run_episode
from rollout_engine.errors import ActorError, EpisodeTimeout, GraderError, UserError
from rollout_engine.grading import grade
from rollout_engine.tokens.conversation import Conversation
from rollout_engine.users import scripted_user

TASKS = load_tasks(("travel", "retail"), "train", 60, 0)
ID = TrajectoryId("r", 4, 0, 0)


@pytest.fixture
def setup(tiny_config, tiny_template):
    return EpisodeSetup(
        None,
        tiny_template,
        NativeEnvironment(scripted_user, tiny_config.rollout.limits),
        Sampling(),
        tiny_config.rollout.limits,
    )


def playing(setup, script):
    return replace(setup, policy=ScriptedPolicy(setup.template, lambda task: script, version=4))


async def test_every_oracle_passes_and_every_slip_fails(setup):
    for task in TASKS:
        trajectory = await run_episode(playing(setup, task.script), task, ID, 4)
        assert trajectory.reward == 1.0 and trajectory.finish == "done", task.id
        for slip in task.slips:
            failed = await run_episode(playing(setup, slip.script), task, ID, 4)
            assert failed.reward == 0.0 and failed.verdict.diff and failed.verdict.reasons, (task.id, slip.name)


async def test_the_trajectory_carries_the_stream_and_the_version(setup):
    task = TASKS[0]
    trajectory = await run_episode(playing(setup, task.script), task, ID, 4)
    tokens = trajectory.tokens.unpack()
    assert int(tokens.mask.sum()) == trajectory.sampled_tokens == len(tokens.logprobs)
    assert set(tokens.versions.tolist()) == {4} and trajectory.policy_version == 4
    said = [m for m in trajectory.messages if m.role == "assistant"]
    assert len(said) == len(task.script)
    assert [call for m in said for call in m.calls] == list(task.oracle)
    assert set(trajectory.timings) == {"actor", "tools", "user", "grader", "total"}


async def test_refused_calls_and_tool_errors_are_told_to_the_agent_and_scored(setup):
    task = TASKS[0]
    script = (ToolCall("no_such_tool", {"a": 1}), ToolCall("get_booking", {"booking_id": "B000"}), Say("all done ."))
    trajectory = await run_episode(playing(setup, script), task, ID, 4)
    results = [m for m in trajectory.messages if m.role == "tool"]
    assert [m.is_error for m in results] == [True, True]
    assert trajectory.reward == 0.0 and trajectory.finish == "done"


@pytest.mark.parametrize(
    "limits, finish",
    [({"agent_turns": 2}, "turn_limit"), ({"episode_tokens": 60}, "token_limit"), ({"user_turns": 1}, "user_limit")],
)
async def test_an_exhausted_budget_ends_the_episode_and_is_graded(setup, limits, finish):
    task = next(task for task in TASKS if task.facts and not isinstance(task.script[0], Say))
    asking = (Say("which booking ?"),) * 9
    script = task.script if finish != "user_limit" else asking
    config = type(setup.limits)
    tight = config(**({name: getattr(setup.limits, name) for name in config.__struct_fields__} | limits))
    tightened = replace(setup, limits=tight, environment=NativeEnvironment(scripted_user, tight))
    trajectory = await run_episode(playing(tightened, script), task, ID, 4)
    assert trajectory.finish == finish and trajectory.reward == 0.0
    assert len(trajectory.tokens.unpack().ids) >= 30


class Leaving:
    """A user who leaves with a last word, and whose model was asked for it."""

    calls = (ModelCall("user", "small", prompt_tokens=9, completion_tokens=3, cost=0.5),)

    def __init__(self, last):
        self._last = last

    async def reply(self, messages):
        return self._last


async def test_what_the_users_model_cost_and_its_last_words_are_kept(setup, monkeypatch):
    task = TASKS[0]
    environment = NativeEnvironment(lambda task: Leaving(None), setup.limits)
    plain = await run_episode(playing(replace(setup, environment=environment), task.script), task, ID, 4)
    assert plain.model_calls == Leaving.calls and plain.messages[-1].role == "assistant"

    async def reply(self, messages):
        return Ended("user_done", said="thanks .")

    monkeypatch.setattr(NativeStage, "reply", reply)
    left = await run_episode(playing(setup, task.script), task, ID, 4)
    assert left.finish == "user_done" and left.messages[-1] == Message("user", "thanks .")
    assert left.sampled_tokens == plain.sampled_tokens < len(left.tokens.unpack().ids)


class Policy:
    def __init__(self, generate):
        self.generate = generate


async def test_tokens_of_another_version_are_a_system_error(setup):
    stale = ScriptedPolicy(setup.template, lambda task: TASKS[0].script, version=3)
    with pytest.raises(ActorError, match="policy version 3, not 4"):
        await run_episode(replace(setup, policy=stale), TASKS[0], ID, 4)


class Aging:
    """Plays a script; each turn is sampled by the next of ``versions``, or half by one and half by the next."""

    def __init__(self, template, script, versions):
        self._played = ScriptedPolicy(template, lambda task: script)
        self._versions = iter(versions)

    async def generate(self, request):
        generation, versions = await self._played.generate(request), next(self._versions)
        half = len(generation.ids) // 2
        each = [versions[0]] * half + [versions[-1]] * (len(generation.ids) - half)
        return replace(generation, versions=each, actor=f"a{versions[-1]}")


async def test_every_token_keeps_its_version_when_weights_change_during_an_episode(setup):
    task = next(task for task in TASKS if len(task.script) >= 3)
    turns = [(3,), (3, 4), *[(4,)] * 20]
    aged = replace(setup, policy=Aging(setup.template, task.script, turns), max_staleness=1)
    trajectory = await run_episode(aged, task, ID, 4)
    fresh = await run_episode(playing(setup, task.script), task, ID, 4)
    assert trajectory.tokens.ids == fresh.tokens.ids, "the stream goes on as it was"
    assert (trajectory.policy_version, trajectory.newer_versions, trajectory.versions) == (3, (4,), (3, 4))
    assert (fresh.policy_version, fresh.newer_versions) == (4, ())
    versions = trajectory.tokens.unpack().versions.tolist()
    assert versions == sorted(versions) and versions.count(3) > 1 and versions.count(4) > 1
    assert trajectory.actor == "a4"


@pytest.mark.parametrize(("version", "message"), [(2, "policy version 2, not 3 to 4"), (5, "policy version 5, not 3")])
async def test_tokens_beyond_the_staleness_bound_are_a_system_error(setup, version, message):
    aged = replace(setup, policy=Aging(setup.template, TASKS[0].script, [(version,)] * 20), max_staleness=1)
    with pytest.raises(ActorError, match=message):
        await run_episode(aged, TASKS[0], ID, 4)


async def test_an_actor_that_never_answers_ends_at_the_episodes_bound(setup, autojump_clock):
    async def hang(request):
        await trio.sleep_forever()

    start = trio.current_time()
    with pytest.raises(EpisodeTimeout, match="episode r/4/0/0/0 of travel"):
        await run_episode(replace(setup, policy=Policy(hang)), TASKS[0], ID, 4)
    assert trio.current_time() - start == pytest.approx(setup.limits.episode)


async def test_a_user_that_never_answers_is_a_system_error(setup, autojump_clock):
    class Silent:
        async def reply(self, messages):
            await trio.sleep_forever()

    environment = NativeEnvironment(lambda task: Silent(), setup.limits)
    silent = replace(playing(setup, (Say("which booking ?"),)), environment=environment)
    with pytest.raises(UserError, match="the simulated user took longer than 60 s"):
        await run_episode(silent, TASKS[0], ID, 4)


async def test_a_check_that_raises_on_any_database_gives_no_verdict(setup, monkeypatch):
    def broken(task, snapshot):
        raise ZeroDivisionError

    monkeypatch.setattr("rollout_engine.grading.blame.grade", broken)
    with pytest.raises(GraderError, match="fails on the oracle's own database: ZeroDivisionError"):
        await run_episode(playing(setup, TASKS[0].script), TASKS[0], ID, 4)


async def test_a_check_that_raises_on_what_the_agent_left_is_scored_and_flagged(setup, monkeypatch):
    task = TASKS[0]

    def touchy(task, snapshot):
        if grade(task, snapshot).reward == 0.0:
            raise KeyError("ticket")
        return Verdict(1.0)

    monkeypatch.setattr("rollout_engine.grading.blame.grade", touchy)
    trajectory = await run_episode(playing(setup, (Say("no ."),)), task, ID, 4)
    assert trajectory.verdict.reasons == ("the check raised on the database that the agent left: KeyError('ticket')",)
    assert trajectory.reward == 0.0
    assert (await run_episode(playing(setup, task.script), task, ID, 4)).reward == 1.0


async def test_a_turn_cut_by_its_cap_is_closed_and_the_stream_stays_the_templates(setup, monkeypatch):
    conversations = []
    original = Conversation.__init__

    def remember(self, *args, **kwargs):
        original(self, *args, **kwargs)
        conversations.append(self)

    monkeypatch.setattr(Conversation, "__init__", remember)
    text = setup.template.encode("<tool_call>\n<function=get_booking>\n<parameter=booking_id>\nB1")

    async def cut(request):
        return Generation(text, [0.0] * len(text), [4] * len(text), "length")

    trajectory = await run_episode(replace(setup, policy=Policy(cut)), TASKS[0], ID, 4)
    assert trajectory.finish == "turn_limit" and trajectory.reward == 0.0
    [conversation] = conversations
    assert conversation.verify() == []
    assert all(m.calls[0].error for m in trajectory.messages if m.role == "assistant")
