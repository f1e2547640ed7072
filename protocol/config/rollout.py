"""``rollout``: episodes, groups and batches, and the bounds of each."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from protocol.config.section import Positive, Seconds, Section
from protocol.config.services import UserModel


class Limits(Section):
    """Bounds of one episode. Turn and token bounds are scored; the waits (seconds) are system errors."""

    agent_turns: Positive = 12
    user_turns: Positive = 6
    turn_tokens: Positive = 96
    episode_tokens: Positive = 900
    """Whole stream, prompt included."""
    episode: Seconds = 120.0
    generate: Seconds = 60.0
    tool_call: Seconds = 10.0
    user: Seconds = 60.0
    grader: Seconds = 10.0


class SamplingConfig(Section):
    temperature: Annotated[float, Meta(gt=0)] = 1.0
    top_k: Annotated[int, Meta(ge=-1, le=1024)] = -1
    """Tokens that one can be sampled from, recorded with each; 0 or -1: the whole vocabulary, of which nothing is
    recorded."""
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Below 1 only with ``top_k``, which bounds the record."""

    @property
    def support(self) -> int:
        """Most ids that a token of a trajectory is recorded to have been sampled from; 0: nothing is recorded."""
        return max(0, self.top_k)


class Retry(Section):
    """How often, and how soon, one sample runs again after system errors of one kind."""

    times: Annotated[int, Meta(ge=0)] = 3
    backoff: Seconds = 0.5
    """Seconds before the first retry; doubled for each further one."""
    max_backoff: Seconds = 30.0


class Retries(Section):
    """By kind of system error; a kind that isn't named here goes by ``default``."""

    default: Retry = Retry()
    actor: Retry | None = None
    backend: Retry | None = None
    user: Retry | None = None
    judge: Retry | None = None
    grader: Retry | None = None
    template: Retry | None = None
    episode_timeout: Retry | None = None
    max_retry_after: Seconds = 600.0
    """A service that asks for a longer pause than this (``Retry-After``) gets this one."""

    def of(self, kind: str) -> Retry:
        """The retry of an error whose ``kind`` is as the ledger writes it."""
        return getattr(self, kind.replace("-", "_"), None) or self.default


class Outage(Section):
    """When system errors of one kind are nobody's fault but a service's: launches pause and probe it."""

    errors: Positive = 8
    """First attempts that ended in an error of one kind, over at least three tasks, among the last ``among``: an
    outage. As many successes in a row end it."""
    among: Positive = 12
    probe: Seconds = 5.0
    """Before the first probe episode; doubled after each that fails."""
    max_probe: Seconds = 120.0
    longest: Seconds = 1800.0
    """Bound on a pause without a single success; then the run stops and says what to do."""


class Rollout(Section):
    groups: Positive = 8
    group_size: Annotated[int, Meta(ge=2)] = 8
    concurrency: Positive = 144
    """Episodes at once, at most: as many as the actors' own load allows."""
    min_concurrency: Positive = 8
    """Episodes at once however loaded the actors are (at most ``concurrency``)."""
    max_staleness: Annotated[int, Meta(ge=0, le=8)] = 0
    """Policy versions that a step may lag behind. 0: synchronous, step s is sampled by version s alone. 1: the engine
    rolls out step s + 1 while the learner updates on step s, and each token may be of version s or s + 1."""
    max_groups: Positive = 24
    """Bound on clean (whole) groups in one step, replacements included."""
    max_incomplete: Annotated[int, Meta(ge=0)] = 8
    """Bound on groups that stay incomplete in one step (a sample out of retries); each is replaced until then."""
    at_bound: Literal["short", "stop"] = "short"
    """At a bound (``max_groups``, ``max_incomplete``, ``batch``) with too few informative groups: publish the short
    batch, or stop with a diagnosis."""
    wave_confidence: Annotated[float, Meta(ge=0, lt=1)] = 0.8
    """Chance, by the tasks' posteriors, that one wave of groups fills the batch without a second. 0: launch exactly
    as many groups as are missing."""
    retries: Retries = Retries()
    outage: Outage = Outage()
    batch: Seconds = 1800.0
    """Bound on one step's rollouts, not counting outages and waits for NATS; and on waiting for an actor at its policy
    version."""
    sampling: SamplingConfig = SamplingConfig()
    limits: Limits = Limits()
    user: UserModel = UserModel()
