"""When system errors are an outage: launches pause, one episode at a time probes, and success brings all back.

Invariant: an outage of one kind opens when enough of the last samples ended their first attempt in an error of that
kind, over several tasks (where there are several): a task whose grader is broken fails again and again, and is no
outage. While it is open no
error of that kind spends a sample's retries. Only an episode that was admitted since the last failed probe is evidence
that the service is back: what was running when it broke may never have needed it. After the first success twice as
many episodes are admitted for each further one, so that a service that has just recovered isn't run over; as many
successes in a row as errors opened the outage close it.

Pure: the caller brings the time (seconds, any origin) and owns every wait.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from protocol.config import Outage

TASKS = 3
"""Tasks that errors must be spread over, at least, to be an outage; all of them, where there are fewer."""

REMEMBERED = 10
"""Times ``among`` ends in which those tasks are looked for: the samples of one task run side by side and end together,
and there may be more of them than ``among``."""


@dataclass(frozen=True)
class OutageStatus:
    """What a terminal shows of one open outage."""

    kind: str
    paused: bool
    """False once a probe has succeeded and launches resume step by step."""
    seconds: float
    """Since it opened."""
    errors: int
    next_probe: float
    """Seconds until the next probe; 0 while one runs."""
    message: str = ""
    """The last error."""


@dataclass
class _Open:
    """One kind's outage."""

    opened: float
    errors: int
    interval: float
    probe_at: float
    since: float
    """Of the pause: the opening, the relapse, or the step's beginning, whichever is latest."""
    message: str
    """The last error."""
    successes: int = 0
    probing: set[int] = field(default_factory=set)
    """Admitted as evidence, and not ended yet."""

    def admits(self, now: float) -> bool:
        if not self.successes:
            return not self.probing and now >= self.probe_at
        return len(self.probing) < 2**self.successes


class Circuits:
    """The outages of one run, by kind of system error. ``tasks``: how many there are to run."""

    def __init__(self, settings: Outage, tasks: int = TASKS):
        self._settings = settings
        self._tasks = min(TASKS, tasks)
        self._ends: deque[tuple[str, str]] = deque(maxlen=REMEMBERED * settings.among)
        """(kind of error or empty, task) of the last samples that ended their first attempt."""
        self._open: dict[str, _Open] = {}
        self._admissions = 0
        self._paused_since = math.inf
        self._paused = 0.0

    @property
    def paused(self) -> bool:
        """Whether launches are down to one probe at a time."""
        return any(not outage.successes for outage in self._open.values())

    def paused_seconds(self, now: float) -> float:
        """Time that all outages so far have held launches up, each moment counted once."""
        return self._paused + max(0.0, now - self._paused_since)

    @property
    def open(self) -> bool:
        """Whether there is any outage, paused or recovering."""
        return bool(self._open)

    def status(self, now: float) -> list[OutageStatus]:
        return [
            OutageStatus(
                kind,
                not outage.successes,
                now - outage.opened,
                outage.errors,
                0.0 if outage.probing or outage.successes else max(0.0, outage.probe_at - now),
                outage.message,
            )
            for kind, outage in self._open.items()
        ]

    def admit(self, now: float) -> int | None:
        """The number of an episode that may start now; None while an outage holds it back."""
        if not all(outage.admits(now) for outage in self._open.values()):
            return None
        number = self._admissions
        self._admissions += 1
        for outage in self._open.values():
            outage.probing.add(number)
        return number

    def wake(self) -> float:
        """When it is worth asking again, if nothing ends before."""
        times = [
            min(math.inf if outage.probing else outage.probe_at, self._end(outage)) for outage in self._paused_ones()
        ]
        return min(times, default=math.inf)

    def overdue(self, now: float) -> str | None:
        """The kind of an outage in which nothing has succeeded for as long as an outage may last."""
        late = (k for k, outage in self._open.items() if not outage.successes and now >= self._end(outage))
        return next(late, None)

    def succeeded(self, number: int, task: str, now: float, first: bool) -> None:
        """The admitted episode, the sample's first attempt or not, ended in a verdict."""
        if first:
            self._ends.append(("", task))
        for kind, outage in list(self._open.items()):
            if number not in outage.probing:
                continue
            outage.probing.discard(number)
            outage.successes += 1
            outage.interval = self._settings.probe
            if outage.successes >= self._settings.errors:
                del self._open[kind]
        self._tally(now)

    def failed(
        self,
        number: int,
        kind: str,
        task: str,
        now: float,
        first: bool,
        retry_after: float | None = None,
        message: str = "",
    ) -> bool:
        """The admitted episode ended in a system error. True: it belongs to an outage, not to the sample."""
        evidence = {k for k, outage in self._open.items() if number in outage.probing}
        for outage in self._open.values():
            outage.probing.discard(number)
        mine = self._open.get(kind)
        if mine is None:
            opened = first and self._count(kind, task, now, retry_after, message)
            for other in evidence:
                # It says nothing of that service, but probing at once would hammer this one.
                self._open[other].probe_at = now + self._open[other].interval
        else:
            opened = True
            mine.errors += 1
            mine.message = message
            if kind in evidence:
                if mine.successes:
                    mine.since = now
                mine.interval = min(2 * mine.interval, self._settings.max_probe)
                mine.probe_at = now + max(mine.interval, retry_after or 0.0)
                mine.successes = 0
                mine.probing.clear()
        self._tally(now)
        return opened

    def ask_again(self, now: float) -> None:
        """A step begins: time in which there was nothing to run is no part of an outage's bound."""
        for outage in self._open.values():
            outage.since = now

    def abandoned(self, number: int) -> None:
        """The admitted episode was cancelled: it says nothing."""
        for outage in self._open.values():
            outage.probing.discard(number)

    def _count(self, kind: str, task: str, now: float, retry_after: float | None, message: str) -> bool:
        self._ends.append((kind, task))
        recent = list(self._ends)[-self._settings.among :]
        errors = sum(k == kind for k, _ in recent)
        if errors < self._settings.errors or len({t for k, t in self._ends if k == kind}) < self._tasks:
            return False
        probe = self._settings.probe
        self._open[kind] = _Open(
            opened=now,
            errors=errors,
            interval=probe,
            probe_at=now + max(probe, retry_after or 0.0),
            since=now,
            message=message,
        )
        self._ends = deque((end for end in self._ends if end[0] != kind), maxlen=self._ends.maxlen)
        return True

    def _end(self, outage: _Open) -> float:
        return outage.since + self._settings.longest

    def _paused_ones(self) -> list[_Open]:
        return [outage for outage in self._open.values() if not outage.successes]

    def _tally(self, now: float) -> None:
        if self.paused and self._paused_since == math.inf:
            self._paused_since = now
        elif not self.paused and self._paused_since < math.inf:
            self._paused += now - self._paused_since
            self._paused_since = math.inf
