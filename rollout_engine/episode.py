"""One episode: an agent, its environment, a user, and a verdict.

Invariant: an episode returns a graded trajectory or raises an :class:`EpisodeSystemError`; there is no
third way out (rules 1 and 2). What the policy does, however wrong, ends in a verdict: refused calls and
tool errors are told to the agent, and an exhausted budget ends the conversation and grades the state
as it stands. The environment is entered and left in this task, and closed to the agent before it is read
(rule 4).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import trio

from protocol.config import Limits
from protocol.records import FinishReason, Message, ToolCall, Trajectory, TrajectoryId
from rollout_engine.actors.policy import GenerateRequest, Policy, Sampling
from rollout_engine.bounds import bound
from rollout_engine.environments.environment import AnyTask, Ended, Environment, Play, Stage, episode_seed
from rollout_engine.errors import ActorError, BackendError, EpisodeTimeout, GraderError, UserError
from rollout_engine.heap import Heap
from rollout_engine.tokens.conversation import Conversation
from rollout_engine.tokens.template import ChatTemplate
from rollout_engine.turnstile import Turnstile


@dataclass(frozen=True)
class EpisodeSetup:
    """What episodes of one run share."""

    policy: Policy
    template: ChatTemplate
    environment: Environment
    sampling: Sampling
    limits: Limits
    max_staleness: int = 0
    """Versions before an episode's own that may sample its tokens: weights may change while it runs."""
    turnstile: Turnstile = field(default_factory=Turnstile)
    heap: Heap = field(default_factory=Heap)


@dataclass
class _Clock:
    """Seconds spent by part of an episode."""

    seconds: dict[str, float]

    def add(self, part: str, since: float) -> None:
        self.seconds[part] = self.seconds.get(part, 0.0) + trio.current_time() - since


async def run_episode(setup: EpisodeSetup, task: AnyTask, id: TrajectoryId, version: int) -> Trajectory:
    """Run ``task`` once with policy version ``version``, or up to ``setup.max_staleness`` before it, and grade the
    state that it leaves.

    Raises an :class:`EpisodeSystemError` for anything that the policy did not cause.
    """
    with setup.heap.episode(), bound(setup.limits.episode, EpisodeTimeout, f"episode {id} of {task.id}"):
        await setup.turnstile.go_through()
        return await _run(setup, task, id, version)


async def _run(setup: EpisodeSetup, task: AnyTask, id: TrajectoryId, version: int) -> Trajectory:
    limits, clock = setup.limits, _Clock({})
    started_at, started = time.time(), trio.current_time()
    async with setup.environment.open(task, id, episode_seed(task, id)) as stage:
        conversation = Conversation(setup.template, "", stage.tools)
        conversation.observe(*stage.opening)
        turns = _Turns(setup, task, id, version, conversation, stage, clock)
        finish = await turns.play()
        since = trio.current_time()
        with bound(limits.tool_call, BackendError, "reading the terminal state"):
            state = await stage.finish()
        with bound(limits.grader, GraderError, f"grading {task.id}"):
            verdict = await stage.grade(state, Play(conversation.messages, finish))
        clock.add("grader", since)
    clock.add("total", started)
    return Trajectory(
        id=id,
        task=task.id,
        domain=task.domain,
        family=task.family,
        policy_version=min(turns.versions, default=version),
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
        ranking=stage.ranking,
        model_calls=tuple(stage.calls),
        newer_versions=tuple(sorted(turns.versions)[1:]),
        learnt_tokens=conversation.learnt_tokens,
    )


class _Turns:
    """The conversation's state machine: agent turns, tool calls and user turns, each within its budget."""

    def __init__(self, setup, task, id, version, conversation, stage, clock):
        self._setup: EpisodeSetup = setup
        self._key = f"{task.id}#{id}"
        self._version: int = version
        self._conversation: Conversation = conversation
        self._stage: Stage = stage
        self._clock: _Clock = clock
        self.versions: set[int] = set()
        """Those that sampled its tokens so far."""
        self.actor = ""
        self.sampled_tokens = 0
        self.prompt_tokens = 0

    async def play(self) -> FinishReason:
        limits, stage = self._setup.limits, self._stage
        for turn in range(1, limits.agent_turns + 1):
            budget = min(limits.turn_tokens, limits.episode_tokens - self._conversation.token_count)
            if budget < 1:
                return "token_limit"
            message = await self._agent_turn(budget)
            if any(call.name in stage.ending for call in message.calls):
                return "end_turn_tool"
            if message.calls:
                await self._tool_calls(message.calls)
            elif finish := stage.ends(message):
                return finish
            if turn == stage.agent_turns:
                return "agent_limit"
            if not message.calls:
                reply = await self._user_turn()
                if isinstance(reply, Ended):
                    if reply.said is not None:
                        self._conversation.observe(Message("user", reply.said))
                    return reply.reason
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
        self._clock.add("actor", since)
        await setup.turnstile.go_through()
        versions, oldest = set(generation.versions), self._version - setup.max_staleness
        if strange := [version for version in versions if not oldest <= version <= self._version]:
            wanted = f"{oldest} to {self._version}" if setup.max_staleness else self._version
            raise ActorError(f"{generation.actor or 'the actor'} sampled with policy version {strange[0]}, "
                             f"not {wanted}")  # fmt: skip
        self.versions |= versions
        self.actor = generation.actor
        self.prompt_tokens += len(prompt)
        self.sampled_tokens += len(generation.ids)
        return self._conversation.add_generation(generation)

    async def _tool_calls(self, calls: tuple[ToolCall, ...]) -> None:
        """Carry out a turn's calls in order, and tell the agent all answers at once."""
        results, said = [], []
        for call in calls:
            if call.error is not None:
                results.append(Message("tool", call.error, name=call.name, is_error=True))
                continue
            since = trio.current_time()
            with bound(self._setup.limits.tool_call, BackendError, f"tool {call.name}"):
                answer = await self._stage.call(call)
            self._clock.add("tools", since)
            results.append(Message("tool", answer.text, name=call.name, is_error=answer.is_error))
            if answer.direct is not None:
                said.append(Message("assistant", answer.direct, injected=True))
        self._conversation.observe(*results, *said)

    async def _user_turn(self) -> str | Ended:
        since = trio.current_time()
        with bound(self._setup.limits.user, UserError, "the simulated user"):
            reply = await self._stage.reply(self._conversation.messages)
        self._clock.add("user", since)
        return reply
