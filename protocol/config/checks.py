"""What no section can say alone: values that contradict each other."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import msgspec

from protocol.config.learner import LORA_TARGETS
from protocol.config.rollout import Retry
from protocol.config.run import Config
from protocol.config.section import ConfigError


def check(config: Config, source: str) -> None:
    """Raises :class:`ConfigError` that names ``source``."""
    if not re.fullmatch(r"[a-z0-9-]+", config.run):
        raise ConfigError(f"{source}: run {config.run!r} is not a slug: lower-case letters, digits and hyphens")
    if config.rollout.max_groups < config.rollout.groups:
        raise ConfigError(
            f"{source}: rollout.max_groups ({config.rollout.max_groups}) is below rollout.groups "
            f"({config.rollout.groups}), so no batch could ever fill"
        )
    if config.rollout.outage.errors > config.rollout.outage.among:
        raise ConfigError(
            f"{source}: rollout.outage.errors ({config.rollout.outage.errors}) is above rollout.outage.among "
            f"({config.rollout.outage.among}), so no outage could ever be noticed"
        )
    for kind, retry in msgspec.structs.asdict(config.rollout.retries).items():
        if isinstance(retry, Retry) and retry.backoff > retry.max_backoff:
            raise ConfigError(
                f"{source}: rollout.retries.{kind}.backoff ({retry.backoff:g}) is above its max_backoff "
                f"({retry.max_backoff:g})"
            )
    if not config.rollout.outage.probe <= config.rollout.outage.max_probe < config.rollout.outage.longest:
        raise ConfigError(
            f"{source}: rollout.outage.probe ({config.rollout.outage.probe:g}), .max_probe "
            f"({config.rollout.outage.max_probe:g}) and .longest ({config.rollout.outage.longest:g}) must be in this "
            "order, so that an outage is probed before it has lasted too long"
        )
    engine = config.rollout.batch + config.rollout.outage.longest
    if config.learner.batch_timeout < engine:
        raise ConfigError(
            f"{source}: learner.batch_timeout ({config.learner.batch_timeout:g}) is below rollout.batch + "
            f"rollout.outage.longest ({config.rollout.batch:g} + {config.rollout.outage.longest:g}), so the learner "
            "could give a step up that the engine still works on"
        )
    lora = config.learner.lora
    if lora and isinstance(lora.targets, str) and lora.targets not in LORA_TARGETS:
        raise ConfigError(
            f"{source}: learner.lora.targets: {lora.targets!r} is no set of layers; known: {', '.join(LORA_TARGETS)}, "
            "or a list of names, such as [q_proj, v_proj]"
        )
    if lora and config.learner.full_push_every > 1:
        raise ConfigError(
            f"{source}: learner.full_push_every ({config.learner.full_push_every}) is for pushes of all parameters; "
            "with learner.lora only adapters are pushed: leave it at 1"
        )
    sampling = config.rollout.sampling
    if sampling.top_p < 1 and not sampling.support:
        raise ConfigError(
            f"{source}: rollout.sampling.top_p ({sampling.top_p:g}) needs rollout.sampling.top_k: what each token was "
            "sampled from is recorded, and nothing else bounds that record. Set top_k (to 20, say), or top_p to 1"
        )
    if config.learner.full_push_every > 1 and config.learner.weights_dtype == "float32":
        raise ConfigError(
            f"{source}: learner.full_push_every ({config.learner.full_push_every}) is for learner.weights_dtype "
            "bfloat16: every float32 value changes in every update, so pushing what changed would save nothing"
        )
    longest = config.rollout.limits.episode_tokens
    if config.learner.row_tokens < longest:
        raise ConfigError(
            f"{source}: learner.row_tokens ({config.learner.row_tokens}) is below rollout.limits.episode_tokens "
            f"({longest}), so a long episode would fit no row"
        )
    if config.learner.keep_every % config.learner.checkpoint_every:
        raise ConfigError(
            f"{source}: learner.keep_every ({config.learner.keep_every}) is no multiple of learner.checkpoint_every "
            f"({config.learner.checkpoint_every}), so few of the checkpoints to keep would ever be made"
        )
    if config.rollout.user.kind == "llm" and not (config.rollout.user.endpoint and config.rollout.user.model):
        raise ConfigError(f"{source}: rollout.user.kind is llm, so rollout.user.endpoint and .model must be set")
    if bool(config.judge.endpoint) != bool(config.judge.model):
        raise ConfigError(f"{source}: judge.endpoint and judge.model must be set both, or neither")
    for key, url in [
        ("rollout.user.endpoint", config.rollout.user.endpoint),
        ("judge.endpoint", config.judge.endpoint),
        ("tasks.thinkingbox.proxy", config.tasks.thinkingbox.proxy),
        *(("actor.urls", u) for u in config.actor.urls),
    ]:
        if url and not is_http(url):
            raise ConfigError(f"{source}: {key}: {url!r} is no URL, for example http://127.0.0.1:8000")


def is_http(url: str) -> bool:
    """Whether a client can be pointed at it: a scheme, a host, and no port that can't be."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and url.isprintable()
    except ValueError:  # half a bracket, a port beyond 65535
        return False
