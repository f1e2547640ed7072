"""Every NATS subject, stream and bucket name of a run, and nothing else.

Invariant: names are made only here. A run id is a slug ``[a-z0-9-]+``, so it is safe in a subject, in a
stream name and in a folder name.
"""

from __future__ import annotations

import re

from protocol.records import TrajectoryId

_SLUG = re.compile(r"[a-z0-9-]+")


def check_run(run: str) -> str:
    """Return ``run``; raise ``ValueError`` unless it is a slug."""
    if not _SLUG.fullmatch(run):
        raise ValueError(f"run id {run!r} is not a slug: use lower-case letters, digits and hyphens only")
    return run


def stream(run: str) -> str:
    """The one JetStream stream that is a run's write-ahead log."""
    return f"endstate-{check_run(run)}"


def stream_subjects(run: str) -> list[str]:
    return [
        f"endstate.{run}.trajectories.>",
        f"endstate.{run}.attempts.>",
        f"endstate.{run}.batches.*",
        policy(run),
        horizon(run),
        origin(run),
    ]


def trajectory(id: TrajectoryId) -> str:
    return f"endstate.{id.run}.trajectories.{id.step}.{id.group}.{id.sample}"


def trajectories(run: str, step: int | None = None) -> str:
    """Filter for a run's trajectories, of one step or of all."""
    return f"endstate.{run}.trajectories.{'>' if step is None else f'{step}.>'}"


def step_of(subject: str) -> int:
    """The step that a trajectory, a batch or a record of attempts belongs to."""
    return int(subject.split(".")[3])


def attempts(run: str, step: int | None, engine: str = "", number: int = 0) -> str:
    """Subject of one record of started attempts; without ``engine``: filter for all of a step, or of the run."""
    place = f"{engine}.{number}" if engine else ">"
    return f"endstate.{run}.attempts.{place if step is None else f'{step}.{place}'}"


def batch(run: str, step: int | str) -> str:
    """Subject of one step's batch; ``"*"`` for all."""
    return f"endstate.{run}.batches.{step}"


def policy(run: str) -> str:
    return f"endstate.{run}.policy"


def horizon(run: str) -> str:
    return f"endstate.{run}.horizon"


def origin(run: str) -> str:
    return f"endstate.{run}.origin"


def event(run: str, kind: str) -> str:
    return f"endstate.{run}.events.{kind}"


def actors_bucket(run: str) -> str:
    """KV bucket of actor heartbeats; keys are actor ids."""
    return f"endstate-{check_run(run)}-actors"


def objects_bucket(run: str) -> str:
    """Object store of claim-checked arrays."""
    return f"endstate-{check_run(run)}-objects"


def learner_consumer(run: str) -> str:
    """Durable consumer by which the learner reads batches."""
    return f"learner-{check_run(run)}"
