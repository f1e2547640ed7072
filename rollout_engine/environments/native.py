"""Our own domains as an :class:`~rollout_engine.environments.environment.Environment`.

Invariant: a stage is one MCP session on one SQLite backend, and its verdict depends on the closed database alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from protocol.config import Limits
from protocol.records import Message, ModelCall, ToolCall, TrajectoryId, Verdict
from rollout_engine.environments.catalogue import domain
from rollout_engine.environments.environment import Answer, Ended, Play
from rollout_engine.environments.schema import Snapshot
from rollout_engine.environments.session import Session, open_session
from rollout_engine.environments.task import Task
from rollout_engine.grading import verdict
from rollout_engine.users.user import User


class NativeEnvironment:
    """Tasks of the domains in :mod:`rollout_engine.environments.catalogue`."""

    def __init__(self, make_user: Callable[[Task], User], limits: Limits) -> None:
        self._make_user = make_user
        self._limits = limits

    @asynccontextmanager
    async def open(self, task: Task, id: TrajectoryId, seed: int) -> AsyncIterator[NativeStage]:
        """Its tools draw no random numbers, so ``seed`` isn't needed."""
        async with open_session(task, call_timeout=self._limits.tool_call) as session:
            yield NativeStage(task, session, self._make_user(task), self._limits.user_turns)


class NativeStage:
    """See :class:`~rollout_engine.environments.environment.Stage`."""

    agent_turns = None
    ranking = ""
    ending: frozenset[str] = frozenset()

    def __init__(self, task: Task, session: Session, user: User, user_turns: int) -> None:
        where = domain(task.domain)
        self.opening = (Message("system", where.policy), Message("user", task.opening))
        self.tools = where.tools
        self._task = task
        self._session = session
        self._user = user
        self._replies_left = user_turns

    @property
    def calls(self) -> Sequence[ModelCall]:
        return self._user.calls

    async def call(self, call: ToolCall) -> Answer:
        result = await self._session.call(call.name, call.arguments)
        return Answer(result.text, result.is_error)

    def ends(self, said: Message) -> None:
        """It is the user who decides."""

    async def reply(self, messages: tuple[Message, ...]) -> str | Ended:
        reply = await self._user.reply(messages)
        if reply is None:
            return Ended("done")
        if not self._replies_left:
            return Ended("user_limit")
        self._replies_left -= 1
        return reply

    async def finish(self) -> Snapshot:
        return self._session.finish()

    async def grade(self, state: Snapshot, play: Play) -> Verdict:
        return verdict(self._task, state)
