"""``nats``: the log and its server."""

from __future__ import annotations

from typing import Literal

from protocol.config.section import Seconds, Section


class Nats(Section):
    url: str = "nats://127.0.0.1:4222"
    connect_timeout: Seconds = 5.0
    publish_timeout: Seconds = 10.0
    """Bound on one request; one that goes unanswered is sent again."""
    reconnect: Seconds = 60.0
    """Bound on riding out a lost server, over all retries of one operation."""
    full_wait: Seconds = 600.0
    """Bound on waiting for room while the server's storage is full."""
    wait: Seconds = 3600.0
    """Bound on waiting for a policy version or a batch whose caller names none of its own."""
    retain: Literal["all", "checkpoint"] = "all"
    """What the log keeps. all: every trajectory. checkpoint: manifests of all steps, and trajectories of those that a
    learner restored from any of its kept checkpoints could still need."""
