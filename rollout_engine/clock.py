"""The time bound of one step, which stands still during an outage.

Invariant: time in which an outage held launches up counts for nothing, however often it came and went.
"""

from __future__ import annotations

import math
from types import TracebackType

import trio

from rollout_engine.circuit import Circuits


class StepClock:
    """``with StepClock(seconds, circuits) as clock:`` cancels its body after ``seconds``, pauses not counted.

    Call :meth:`update` whenever the circuits may have changed.
    """

    def __init__(self, seconds: float, circuits: Circuits):
        self._seconds = seconds
        self._circuits = circuits
        self._scope = trio.CancelScope()

    def __enter__(self) -> StepClock:
        self._started = trio.current_time()
        self._paused = self._circuits.paused_seconds(self._started)
        self._scope.__enter__()
        self.update()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._scope.__exit__(kind, error, trace)

    def update(self) -> None:
        paused = self._circuits.paused_seconds(trio.current_time()) - self._paused
        self._scope.deadline = math.inf if self._circuits.paused else self._started + self._seconds + paused

    @property
    def expired(self) -> bool:
        """Whether the body was cut short."""
        return self._scope.cancelled_caught

    @property
    def seconds(self) -> float:
        """Since the step began, pauses included."""
        return trio.current_time() - self._started
