"""Where the synchronous learner gets its batches: the run's log, live over NATS or from exported files.

Invariant: a step's batch is read by its step, from the log (rule 12). A learner restored from an older
checkpoint asks for the steps after it and gets the very batches that it got before, acknowledged or not.

Everything here blocks, with a bound. The NATS client runs on an asyncio thread; neither trio nor JAX is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from protocol import log
from protocol.asyncio_bus import AsyncioBus
from protocol.config import Config
from protocol.errors import RecordMissing
from protocol.portal import Portal
from protocol.records import Batch, Origin, PolicyVersion, Trajectory, TrajectoryId


@dataclass(frozen=True)
class Delivery:
    """One step's batch, and how to get at what to train on."""

    batch: Batch
    fetch: Callable[[Sequence[TrajectoryId]], list[Trajectory]]
    """These trajectories of its groups, in this order, arrays in place: a process reads those of its own rows."""
    acknowledge: Callable[[], None]
    """Call once the update is durable or can be replayed (rule 13). Calling it again changes nothing."""


class BatchSource(Protocol):
    """What the training loop asks of its input."""

    def next(self, step: int) -> Delivery:
        """The batch of ``step``."""
        ...

    def release(self, before: int) -> None:
        """Nobody will ask for the batch of a step before ``before`` again, whatever happens."""
        ...

    def origin(self) -> Origin | None:
        """Where the run was forked from; None when it is no fork."""
        ...


class NatsBatches:
    """The batches of ``config.run``, live. Use inside ``with``.

    Methods raise the errors of :mod:`protocol.errors`: :class:`~protocol.errors.WaitExpired` when a batch doesn't
    come within ``learner.batch_timeout``, :class:`~protocol.errors.ServerUnreachable` when NATS is away for longer
    than ``nats.reconnect``.
    """

    def __init__(self, config: Config):
        self._bus = AsyncioBus(config.nats, config.run)
        self._timeout = config.learner.batch_timeout
        self._purge = config.nats.retain == "checkpoint"
        self._slack = config.rollout.max_staleness
        self._portal = Portal("learner-bus")
        self._stack = ExitStack()

    def __enter__(self) -> NatsBatches:
        with ExitStack() as stack:
            stack.enter_context(self._portal)
            self._portal.call(self._bus.open)
            stack.callback(self._portal.call, self._bus.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def next(self, step: int) -> Delivery:
        """The batch of ``step``, as soon as it is logged."""
        batch = self._portal.call(self._bus.wait_batch, step, self._timeout)
        return Delivery(
            batch,
            lambda ids: self._portal.call(self._bus.fetch, ids),
            lambda: self._portal.call(self._bus.consumer.acknowledge_step, step),
        )

    def release(self, before: int) -> None:
        """Let the log forget what no one needs any more: as ``nats.retain`` says, and objects of no trajectory.

        A step may train on what was left over by as many steps before it as ``rollout.max_staleness`` says.
        """
        self._portal.call(self._bus.release, max(0, before - self._slack), self._purge)

    def origin(self) -> Origin | None:
        return self._portal.call(self._bus.origin)

    def publish(self, version: PolicyVersion) -> bool:
        """Announce a policy version. False: the log holds this one or a later one already."""
        return self._portal.call(self._bus.publish_policy, version)

    def policy(self) -> PolicyVersion | None:
        """The newest policy version announced, or None."""
        return self._portal.call(self._bus.policy)

    def emit(self, kind: str, data: dict[str, Any]) -> None:
        """Tell terminals and dashboards. Not kept, not retried."""
        self._portal.call(self._bus.emit, kind, data)


class LogBatches:
    """The batches of exported files (:func:`protocol.log.read`), without any server."""

    def __init__(self, paths: Iterable[str | Path]):
        self._log = log.read(paths)

    @property
    def run(self) -> str:
        return self._log.run

    @property
    def steps(self) -> list[int]:
        """Steps that the files hold a batch of, ascending."""
        return list(self._log.batches)

    def next(self, step: int) -> Delivery:
        """The batch of ``step``; raises :class:`RecordMissing` when the files hold none."""
        batch = self._log.batches.get(step)
        if batch is None:
            raise RecordMissing(
                f"the files hold no batch for step {step} of run {self.run}, but those of {_ranges(self.steps)}: add "
                f"the file of step {step}, or put a checkpoint of one of these steps into the run's folder"
            )
        return Delivery(batch, lambda ids: [self._log.trajectories[id] for id in ids], lambda: None)

    def release(self, before: int) -> None:
        """Files stay as they are."""

    def origin(self) -> Origin | None:
        return self._log.origin


def _ranges(steps: list[int]) -> str:
    starts = [step for step in steps if step - 1 not in steps]
    ends = [step for step in steps if step + 1 not in steps]
    return ", ".join(f"steps {a} to {b}" if a < b else f"step {a}" for a, b in zip(starts, ends, strict=True)) or "none"
