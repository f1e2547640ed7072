"""Which tasks a run draws from: candidates to train on, and those held out.

Invariant: the same configuration gives the same tasks to every verb, and the two sets share no id.
"""

from __future__ import annotations

from protocol.config import Config
from rollout_engine.environments.environment import AnyTask
from rollout_engine.environments.registry import load_tasks
from rollout_engine.environments.task import Split
from rollout_engine.errors import ConfigurationError


def training_candidates(config: Config) -> list[AnyTask]:
    """Tasks that the probe judges; raises :class:`ConfigurationError` when one breaks rule 5, may not be trained on,
    or there is none."""
    tasks = _tasks(config, "train", config.tasks.train)
    if not tasks:
        raise ConfigurationError(
            "there is no task to train on: tasks.domains is empty, and so is tasks.thinkingbox.train"
        )
    return tasks


def heldout_tasks(config: Config) -> list[AnyTask]:
    """Tasks that only evaluation sees; raises :class:`ConfigurationError` when one breaks rule 5."""
    return _tasks(config, "heldout", config.tasks.heldout)


def _tasks(config: Config, split: Split, count: int) -> list[AnyTask]:
    own = load_tasks(config.tasks.domains, split, count, config.seed) if config.tasks.domains else []
    if not config.tasks.thinkingbox.used:
        return own
    from rollout_engine.environments.thinkingbox.places import thinkingbox_tasks

    return [*own, *thinkingbox_tasks(config, split)]
