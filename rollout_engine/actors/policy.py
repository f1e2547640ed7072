"""What the engine asks of a policy: token ids in, token ids out.

Invariant: a policy never sees text and never returns text. Sampled ids, their behaviour
log-probabilities and the policy version of each come back together or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample. Log-probabilities are those of this (processed) distribution."""

    temperature: float = 1.0
    top_k: int = -1
    """-1: no truncation."""
    top_p: float = 1.0


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    prompt_ids: Sequence[int]
    max_tokens: int
    sampling: Sampling
    stop_ids: tuple[int, ...]
    """Generation ends after sampling one of these; that id is part of the result."""
    episode: str
    """Sticky key: requests of one episode go to one actor for its prefix cache."""
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    ids: list[int]
    logprobs: list[float]
    versions: list[int]
    finish: Literal["stop", "length"]
    actor: str = ""


class Policy(Protocol):
    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one turn.

        Raises :class:`rollout_engine.errors.ActorError` when the actor fails (that is not the
        policy's doing, so the sample runs again).
        """
        ...
