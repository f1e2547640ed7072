"""The environment of a run: that of its own tasks, and that of ThinkingBox tasks where the run has any."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx

from protocol.config import Config
from protocol.records import TrajectoryId
from rollout_engine.environments.environment import Environment, Stage
from rollout_engine.environments.native import NativeEnvironment
from rollout_engine.users import make_user


@asynccontextmanager
async def open_environment(config: Config, client: httpx.AsyncClient, samples: int) -> AsyncIterator[Environment]:
    """``client`` is what simulated users and judges are asked through, ``samples`` how many attempts at one task belong
    together. What the body raises comes out as it is."""
    native = NativeEnvironment(lambda task: make_user(config.rollout.user, task, client), config.rollout.limits)
    if not config.tasks.thinkingbox.used:
        yield native
        return
    from rollout_engine.environments.thinkingbox.opening import open_thinkingbox

    failure: Exception | None = None
    async with open_thinkingbox(config, client, samples) as thinkingbox:
        try:
            yield _ByTask(native, thinkingbox)
        except Exception as error:
            # Raised through the task groups of what was opened, it would come out as an exception group.
            failure = error
    if failure is not None:
        raise failure


class _ByTask:
    """Chooses by the kind of task."""

    def __init__(self, native: NativeEnvironment, thinkingbox: Environment) -> None:
        self._native = native
        self._thinkingbox = thinkingbox

    def open(self, task: Any, id: TrajectoryId, seed: int) -> AbstractAsyncContextManager[Stage]:
        from rollout_engine.environments.thinkingbox.task import ThinkingBoxTask

        chosen = self._thinkingbox if isinstance(task, ThinkingBoxTask) else self._native
        return chosen.open(task, id, seed)
