"""The domains by name."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from rollout_engine.environments.domain import Domain
from rollout_engine.errors import ConfigurationError

DOMAINS = ("travel", "retail")


@cache
def domain(name: str) -> Domain:
    """The domain of that name, built on first use; raises :class:`ConfigurationError` when there is none."""
    if name not in DOMAINS:
        raise ConfigurationError(f"no domain {name!r}; known: {', '.join(DOMAINS)}")
    return import_module(f"rollout_engine.environments.{name}").DOMAIN
