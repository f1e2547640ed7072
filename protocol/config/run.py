"""A run: all of its sections."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from protocol.config.actor import Actor, Model
from protocol.config.curation import Curation, TaskSampling
from protocol.config.learner import Learner, WarmStart
from protocol.config.log import Nats
from protocol.config.rollout import Rollout
from protocol.config.section import Positive, Section
from protocol.config.services import Judge
from protocol.config.tasks import Tasks


class Evaluation(Section):
    repeat: Positive = 8
    concurrency: Positive = 64
    token_price: float = 1.0
    """Price of a million tokens, for the cost figures."""


class Config(Section):
    run: str
    seed: Annotated[int, Meta(ge=0, lt=2**32)] = 0
    folder: str = "runs"
    """A run's files live in ``folder/run``."""
    nats: Nats = Nats()
    model: Model = Model()
    tasks: Tasks = Tasks()
    curation: Curation = Curation()
    sampling: TaskSampling = TaskSampling()
    rollout: Rollout = Rollout()
    learner: Learner = Learner()
    warmstart: WarmStart = WarmStart()
    actor: Actor = Actor()
    evaluation: Evaluation = Evaluation()
    judge: Judge = Judge()

    @property
    def path(self) -> Path:
        """The run's folder."""
        return Path(self.folder) / self.run

    def fingerprint(self) -> str:
        """First 16 hex digits of the sha256 of the resolved configuration."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()[:16]
