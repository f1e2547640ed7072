"""Simulated users: scripted, and an LLM behind an OpenAI-compatible endpoint."""

from rollout_engine.users.scripted import scripted_user
from rollout_engine.users.user import User

__all__ = ["User", "scripted_user"]
