"""The exception tree of the engine, one branch a boundary.

Invariant (rule 1): what the policy can cause is never raised, it is scored. An :class:`EpisodeSystemError` is
something that the agent had no part in: that one sample runs again, and the ledger counts it by ``kind``.

    EpisodeSystemError
      ActorError        the policy server: dead, unreachable, refused, timed out
      BackendError      the environment: a crashed session, a lost connection, a bound exceeded
      UserError         the simulated user's model
      GraderError       no verdict
        JudgeError      the judge's model
      EpisodeTimeout    the episode as a whole
    RunStopped          a stated bound was reached: the log keeps what is done, and the message says how to go on
    ConfigurationError  bad input before anything starts: names the fault and the way out
"""

from __future__ import annotations


class EpisodeSystemError(Exception):
    """Something that the policy did not cause ended an episode. ``kind`` names the ledger's bucket."""

    kind = "unknown"

    retry_after: float | None = None
    """Seconds for which the service asked to be left alone (``Retry-After``), where it did."""


class ActorError(EpisodeSystemError):
    kind = "actor"


class BackendError(EpisodeSystemError):
    kind = "backend"


class UserError(EpisodeSystemError):
    kind = "user"


class GraderError(EpisodeSystemError):
    kind = "grader"


class JudgeError(GraderError):
    """The judge's model can't be asked: never a No."""

    kind = "judge"


class EpisodeTimeout(EpisodeSystemError):
    """The episode as a whole exceeded its bound without any single wait exceeding its own."""

    kind = "episode-timeout"


class RunStopped(Exception):
    """The run can't go on within a bound of the configuration. What is done is on the log; the same command goes on
    from there once the message's advice is followed."""


class ConfigurationError(Exception):
    """Input that can't be used. The message names the fault and what to do about it."""


class NoSolution(ConfigurationError):
    """A task that tells no solution of its own was to be played by the oracle."""
