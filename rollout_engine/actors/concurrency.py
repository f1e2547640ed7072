"""How many episodes at once the actors bear: up while they have room, down when they have not.

Invariant: additive increase, multiplicative decrease, between two bounds. What the actors say of themselves decides:
a full cache, requests thrown out of it, a queue longer than what runs, or an actor that answers "busy" is too much;
half-empty caches and no queue are room. A change is judged by its effect: nothing is cut again before as few episodes
run as the last cut allows, and growth is paid for by episodes that end, a place for every four, so a turnover of all
episodes, in which the new ones have filled the caches as far as they will, grows by a quarter at most. Room is what
was room throughout the last turnover: episodes that began together fill the caches together.

No running episode is cancelled for it: servers bear an overload by recomputing, an episode lost is lost. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.records import ActorStatus

CUT = 0.8
GROWTH = 0.25
"""Places gained for each episode that ends while there is room."""
FULL, HIGH, ROOM = 0.9, 0.8, 0.6
"""Share of the fullest cache in use: too much; too much if it also had to throw requests out; room below.

A weight update, too, sends running requests back to the queue, but leaves the caches empty: that's why HIGH is asked.
"""


@dataclass(frozen=True)
class Reading:
    """The actors' load, all together, at one moment."""

    running: int
    waiting: int
    kv_use: float
    """Of the fullest cache."""
    preempted: int = 0
    """Requests thrown out of a cache since the last reading."""
    refused: int = 0
    """Requests that an actor had no room for since the last reading."""

    @property
    def overloaded(self) -> bool:
        return bool(
            self.refused
            or self.kv_use >= FULL
            or (self.preempted and self.kv_use >= HIGH)
            or self.waiting > max(1, self.running)
        )

    @property
    def room(self) -> bool:
        return not self.overloaded and self.kv_use < ROOM and self.waiting <= max(1, self.running // 8)


class LoadMeter:
    """Heartbeats to readings: what only ever grows becomes what it grew by."""

    def __init__(self) -> None:
        self._newest = -float("inf")
        self._preemptions: dict[str, int] = {}
        self._refused = 0

    def read(self, serving: Sequence[ActorStatus], refused: int) -> Reading | None:
        """The load of the ``serving`` actors; None while none has said anything new.

        ``refused``: requests refused so far. An actor's first count is where it starts; a smaller one than its last
        is a restart.
        """
        newest = max((status.time for status in serving), default=self._newest)
        if newest <= self._newest:
            return None
        preempted = 0
        for status in serving:
            preempted += max(0, status.load.preemptions - self._preemptions.get(status.id, status.load.preemptions))
            self._preemptions[status.id] = status.load.preemptions
        self._newest, self._refused, before = newest, refused, self._refused
        loads = [status.load for status in serving]
        return Reading(
            running=sum(load.running for load in loads),
            waiting=sum(load.waiting for load in loads),
            kv_use=max(load.kv_use for load in loads),
            preempted=preempted,
            refused=refused - before,
        )


class Concurrency:
    """The bound on episodes at once, from ``most`` on, never below ``least``."""

    def __init__(self, least: int, most: int):
        self._least = min(least, most)
        self._most = most
        self._limit = float(most)
        self._ended = 0
        """Episodes since the last reading that wasn't room."""

    @property
    def limit(self) -> int:
        return int(self._limit)

    def observe(self, reading: Reading, in_flight: int, ended: int, wanted: bool) -> int:
        """The bound after ``reading``, taken with ``in_flight`` episodes running.

        ``ended``: episodes since the last reading; ``wanted``: whether more would run if they might.
        """
        self._ended = self._ended + ended if reading.room else 0
        if reading.overloaded and in_flight <= self._limit:
            self._limit = max(float(self._least), min(self._limit, float(in_flight)) * CUT)
        elif wanted and self._ended > self._limit:
            self._limit = min(float(self._most), self._limit + GROWTH * ended)
        return self.limit
