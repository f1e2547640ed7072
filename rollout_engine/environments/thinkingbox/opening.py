"""Everything that ThinkingBox tasks need of a run, opened and closed together.

Invariant: what is opened here is closed when the block is left, in the opposite order: sessions before the knowledge
search that their servers talk to.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import trio

from protocol.config import Config, ThinkingBox
from rollout_engine.chat_endpoint import ChatEndpoint
from rollout_engine.environments.thinkingbox.dataset import Case
from rollout_engine.environments.thinkingbox.environment import ThinkingBoxEnvironment
from rollout_engine.environments.thinkingbox.golden import GoldenRuns
from rollout_engine.environments.thinkingbox.groups import GroupSessions
from rollout_engine.environments.thinkingbox.places import places, server_specs
from rollout_engine.errors import ConfigurationError
from rollout_engine.grading.child import GraderHost, GraderLimits
from rollout_engine.grading.judge import Judge
from rollout_engine.grading.judge.agreeable import Agreeable
from rollout_engine.sessions import HostLimits, SessionHost
from rollout_engine.sessions.opening import OpensSessions
from rollout_engine.sessions.proxy.client import ProxyHost, ProxyLimits
from rollout_engine.sessions.search.server import SearchUnavailable
from rollout_engine.sessions.search.service import open_search
from rollout_engine.users.thinkingbox import ThinkingBoxUser


@asynccontextmanager
async def open_thinkingbox(
    config: Config, client: httpx.AsyncClient, samples: int
) -> AsyncIterator[ThinkingBoxEnvironment]:
    """``samples``: attempts a task that belong together; more than one is worth a template to clone.

    Raises :class:`ConfigurationError` for servers or a search that can't be had.
    """
    settings, limits = config.tasks.thinkingbox, config.rollout.limits
    async with AsyncExitStack() as stack:
        try:
            search = await stack.enter_async_context(
                open_search(settings.search, key=os.environ.get("TYPESENSE_API_KEY", ""))
            )
        except SearchUnavailable as error:
            raise ConfigurationError(f"tasks.thinkingbox.search: {error}") from error
        host = await stack.enter_async_context(_sessions(config))
        graders = await stack.enter_async_context(
            GraderHost(GraderLimits(wall_seconds=limits.grader), places(settings).python, settings.modules)
        )
        nursery = await stack.enter_async_context(trio.open_nursery())
        cloned = settings.clone and samples > 1 and isinstance(host, SessionHost)

        def make_user(case: Case) -> ThinkingBoxUser:
            user = config.rollout.user
            model = ChatEndpoint(user, client, "user") if user.kind == "llm" else None
            return ThinkingBoxUser(case.user_context, case.max_user_turns, model, can_end=user.can_end)

        yield ThinkingBoxEnvironment(
            host=host,
            groups=GroupSessions(host, nursery) if cloned else None,
            graders=graders,
            golden=GoldenRuns(host, graders),
            make_user=make_user,
            make_judge=lambda: Agreeable() if config.judge.kind == "agreeable" else Judge(config.judge, client),
            limits=limits,
            ranking=search.ranking or "",
        )
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def _sessions(config: Config) -> AsyncIterator[OpensSessions]:
    """What opens sessions: a host of our own, or a proxy by its URL."""
    settings = config.tasks.thinkingbox
    if settings.proxy:
        limits = ProxyLimits(open=settings.open_timeout, call=config.rollout.limits.tool_call)
        async with ProxyHost(settings.proxy, _key(settings), limits=limits) as proxy:
            yield proxy
        return
    limits = HostLimits(
        open=settings.open, open_timeout=settings.open_timeout, call_timeout=config.rollout.limits.tool_call
    )
    async with SessionHost(server_specs(settings), limits) as host:
        yield host


def _key(settings: ThinkingBox) -> str | None:
    if not settings.proxy_key_env:
        return None
    if not os.environ.get(settings.proxy_key_env):
        raise ConfigurationError(f"tasks.thinkingbox.proxy_key_env names {settings.proxy_key_env}, which is not set")
    return os.environ[settings.proxy_key_env]
