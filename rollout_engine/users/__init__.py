"""Simulated users: scripted, and an LLM behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import httpx

from protocol.config import UserModel
from rollout_engine.environments.task import Task
from rollout_engine.users.llm import LlmUser
from rollout_engine.users.scripted import scripted_user
from rollout_engine.users.user import User

__all__ = ["LlmUser", "User", "make_user", "scripted_user"]


def make_user(config: UserModel, task: Task, client: httpx.AsyncClient | None = None) -> User:
    """The user that ``rollout.user`` asks for. ``client`` is needed for an LLM user, and is not closed."""
    if config.kind == "scripted":
        return scripted_user(task)
    if client is None:
        raise ValueError("an LLM user needs an HTTP client")
    return LlmUser(task, config, client)
