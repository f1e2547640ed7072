"""Which tasks a run draws from: candidates to train on, and those held out.

Invariant: the same configuration gives the same tasks to every verb, and the two sets share no id.
"""

from __future__ import annotations

from protocol.config import Config
from rollout_engine.environments.registry import load_tasks
from rollout_engine.environments.task import Task


def training_candidates(config: Config) -> list[Task]:
    """Tasks that the probe judges; raises :class:`ConfigurationError` when one breaks rule 5."""
    return load_tasks(config.tasks.domains, "train", config.tasks.train, config.seed)


def heldout_tasks(config: Config) -> list[Task]:
    """Tasks that only evaluation sees; raises :class:`ConfigurationError` when one breaks rule 5."""
    return load_tasks(config.tasks.domains, "heldout", config.tasks.heldout, config.seed)
