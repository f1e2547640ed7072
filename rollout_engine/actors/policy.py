"""What the engine asks of a policy: token ids in, token ids out.

Invariant: a policy never sees text and never returns text. Sampled ids, their behaviour
log-probabilities and the policy version of each come back together or not at all, and, where sampling
was truncated, what each was sampled from.
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

    @property
    def truncated(self) -> bool:
        """Whether only some of the vocabulary can be sampled, and the ratio of an update needs to know which.

        Greedy sampling (temperature 0) isn't for updates.
        """
        return self.top_k > 0 and self.temperature > 0


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
    support: list[list[int]] | None = None
    """The ids that each could have been, itself among them; None unless sampling was ``truncated``. Then a
    log-probability is of the distribution over these alone."""


class Policy(Protocol):
    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one turn.

        Raises :class:`rollout_engine.errors.ActorError` when the actor fails (that is not the
        policy's doing, so the sample runs again).
        """
        ...
