"""One episode: an agent, its tools on a fresh backend, a simulated user, and a verdict.

Invariant: an episode returns a graded trajectory or raises an :class:`EpisodeSystemError`; there is no
third way out (rules 1 and 2). What the policy does, however wrong, ends in a verdict: refused calls and
tool errors are told to the agent, and an exhausted budget ends the conversation and grades the database
as it stands. The session is entered and left in this task, and closed to the agent before it is read
(rule 4).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import trio

from protocol.config import Limits
from protocol.records import FinishReason, Message, ToolCall, Trajectory, TrajectoryId, Verdict
from rollout_engine.actors.policy import GenerateRequest, Policy, Sampling
from rollout_engine.bounds import bound
from rollout_engine.environments.catalogue import domain
from rollout_engine.environments.session import Session, open_session
from rollout_engine.environments.task import Task
from rollout_engine.errors import ActorError, BackendError, EpisodeTimeout, GraderError, UserError
from rollout_engine.grading import grade
from rollout_engine.tokens.conversation import Conversation
from rollout_engine.tokens.template import ChatTemplate
from rollout_engine.users import User


@dataclass(frozen=True)
class EpisodeSetup:
    """What episodes of one run share."""

    policy: Policy
    template: ChatTemplate
    make_user: Callable[[Task], User]
    sampling: Sampling
    limits: Limits


@dataclass
class _Clock:
    """Seconds spent by part of an episode."""

    seconds: dict[str, float]

    def add(self, part: str, since: float) -> None:
        self.seconds[part] = self.seconds.get(part, 0.0) + trio.current_time() - since


async def run_episode(setup: EpisodeSetup, task: Task, id: TrajectoryId, version: int) -> Trajectory:
    """Run ``task`` once with policy version ``version`` and grade the database that it leaves.

    Raises an :class:`EpisodeSystemError` for anything that the policy did not cause.
    """
    with bound(setup.limits.episode, EpisodeTimeout, f"episode {id} of {task.id}"):
        return await _run(setup, task, id, version)


async def _run(setup: EpisodeSetup, task: Task, id: TrajectoryId, version: int) -> Trajectory:
    limits, clock = setup.limits, _Clock({})
    started_at, started = time.time(), trio.current_time()
    where = domain(task.domain)
    conversation = Conversation(setup.template, where.policy, where.tools)
    conversation.observe(Message("user", task.opening))
    async with open_session(task, call_timeout=limits.tool_call) as session:
        turns = _Turns(setup, task, id, version, conversation, session, clock)
        finish = await turns.play()
        snapshot = session.finish()
    since = trio.current_time()
    verdict = _grade(task, snapshot)
    clock.add("grader", since)
    clock.add("total", started)
    return Trajectory(
        id=id,
        task=task.id,
        domain=task.domain,
        family=task.family,
        policy_version=version,
        messages=conversation.messages,
        verdict=verdict,
        finish=finish,
        tokens=conversation.arrays(),
        seed=task.seed,
        actor=turns.actor,
        sampled_tokens=turns.sampled_tokens,
        prompt_tokens=turns.prompt_tokens,
        started_at=started_at,
        timings={part: round(seconds, 6) for part, seconds in clock.seconds.items()},
    )


class _Turns:
    """The conversation's state machine: agent turns, tool calls and user turns, each within its budget."""

    def __init__(self, setup, task, id, version, conversation, session, clock):
        self._setup: EpisodeSetup = setup
        self._key = f"{task.id}#{id}"
        self._version: int = version
        self._conversation: Conversation = conversation
        self._session: Session = session
        self._user: User = setup.make_user(task)
        self._clock: _Clock = clock
        self.actor = ""
        self.sampled_tokens = 0
        self.prompt_tokens = 0

    async def play(self) -> FinishReason:
        limits = self._setup.limits
        user_turns = 0
        for _ in range(limits.agent_turns):
            budget = min(limits.turn_tokens, limits.episode_tokens - self._conversation.token_count)
            if budget < 1:
                return "token_limit"
            message = await self._agent_turn(budget)
            if message.calls:
                results = [await self._tool_call(call) for call in message.calls]
                self._conversation.observe(*results)
                continue
            reply = await self._user_turn()
            if reply is None:
                return "done"
            if user_turns == limits.user_turns:
                return "user_limit"
            user_turns += 1
            self._conversation.observe(Message("user", reply))
        return "turn_limit"

    async def _agent_turn(self, budget: int) -> Message:
        setup, since = self._setup, trio.current_time()
        prompt = self._conversation.prompt_ids
        request = GenerateRequest(
            prompt_ids=prompt,
            max_tokens=budget,
            sampling=setup.sampling,
            stop_ids=setup.template.stop_ids,
            episode=self._key,
        )
        generation = await setup.policy.generate(request)
        stale = [v for v in generation.versions if v != self._version]
        if stale:
            raise ActorError(f"{generation.actor or 'the actor'} sampled with policy version {stale[0]}, "
                             f"not {self._version}")  # fmt: skip
        self.actor = generation.actor
        self.prompt_tokens += len(prompt)
        self.sampled_tokens += len(generation.ids)
        self._clock.add("actor", since)
        return self._conversation.add_generation(generation)

    async def _tool_call(self, call: ToolCall) -> Message:
        if call.error is not None:
            return Message("tool", call.error, name=call.name, is_error=True)
        since = trio.current_time()
        with bound(self._setup.limits.tool_call, BackendError, f"tool {call.name}"):
            result = await self._session.call(call.name, call.arguments)
        self._clock.add("tools", since)
        return Message("tool", result.text, name=call.name, is_error=result.is_error)

    async def _user_turn(self) -> str | None:
        since = trio.current_time()
        with bound(self._setup.limits.user, UserError, "the simulated user"):
            reply = await self._user.reply(self._conversation.messages)
        self._clock.add("user", since)
        return reply


def _grade(task: Task, snapshot) -> Verdict:
    # A grader that raises is a fault of the task or of ours, never the agent's: no verdict, no reward.
    try:
        return grade(task, snapshot)
    except Exception as error:
        raise GraderError(f"grading {task.id} failed: {error!r}") from error
