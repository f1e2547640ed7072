"""ThinkingBox cases as an :class:`~rollout_engine.environments.environment.Environment`.

Invariant: a stage is one session over the case's servers, with its merged world as their configuration; a fault of
theirs is a BackendError, never the agent's. The samples of a group share one initialisation where sessions can be
cloned.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from protocol.config import Limits
from protocol.records import TrajectoryId
from rollout_engine.environments.thinkingbox.dataset import Case, DatasetError, formatted
from rollout_engine.environments.thinkingbox.golden import GoldenRuns
from rollout_engine.environments.thinkingbox.groups import GroupSessions
from rollout_engine.environments.thinkingbox.stage import ThinkingBoxStage
from rollout_engine.environments.thinkingbox.task import ThinkingBoxTask
from rollout_engine.environments.thinkingbox.tools import toolbox
from rollout_engine.errors import BackendError, ConfigurationError
from rollout_engine.grading.child import GraderHost
from rollout_engine.sessions.errors import SessionError
from rollout_engine.sessions.opening import OpenSession, OpensSessions
from rollout_engine.users.thinkingbox import ThinkingBoxUser


@dataclass(frozen=True)
class ThinkingBoxEnvironment:
    """``host`` opens sessions; ``groups`` clones them, or is None where each is opened afresh. ``ranking``: whose
    knowledge search the servers have, unless a session knows better."""

    host: OpensSessions
    groups: GroupSessions | None
    graders: GraderHost
    golden: GoldenRuns
    make_user: Callable[[Case], ThinkingBoxUser]
    make_judge: Callable[[], Any]
    limits: Limits
    ranking: str = ""

    @asynccontextmanager
    async def open(self, task: ThinkingBoxTask, id: TrajectoryId, seed: int) -> AsyncIterator[ThinkingBoxStage]:
        opened = False
        try:
            async with self._session(task.case, id, seed) as session:
                stage = self._stage(task.case, session)
                await stage.replay()
                opened = True
                yield stage
        except SessionError as error:
            when = "" if opened else "could not be opened"
            raise BackendError(f"the session of {task.id} {when or 'could not be closed'}: {error}") from error

    def _session(self, case: Case, id: TrajectoryId, seed: int) -> AbstractAsyncContextManager[OpenSession]:
        tools = [tool.name for tool in case.scenario.tools]
        if self.groups is None:
            return self.host.open(case.world, seed=seed, tools=tools)
        return self.groups.open((case.uid, id.run, id.step, id.group), case.world, seed, tools)

    def _stage(self, origin: Case, session: Any) -> ThinkingBoxStage:
        try:
            case = formatted(origin, session.init_result)
        except DatasetError as error:
            raise ConfigurationError(str(error)) from error
        return ThinkingBoxStage(
            case,
            session,
            toolbox(case, session.tools),
            self.make_user(case),
            self.make_judge(),
            self.graders,
            partial(self.golden.outcome, origin),
            self.limits.tool_call,
            session.ranking or self.ranking,
        )
