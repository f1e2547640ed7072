"""What the engine's verbs report as a known fault: the protocol's faults and the engine's own."""

from __future__ import annotations

from functools import partial

from protocol.cli import failures
from rollout_engine.errors import ConfigurationError, EpisodeSystemError, RunStopped

exit_on_known_fault = partial(
    failures.exit_on_known_fault,
    known=(*failures.PROTOCOL_FAULTS, ConfigurationError, EpisodeSystemError, RunStopped),
)
"""As :func:`protocol.cli.failures.exit_on_known_fault`."""
