"""What a run's log may forget, and how.

Invariants: nothing is removed that a learner restored from a kept checkpoint, or the step that an engine works on,
could ask for. How far back the log reaches is on the log before anything is removed, so a reader is told what was
removed from what was lost. Each removal can be cut short at any instant: the next one completes it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from protocol import subjects
from protocol.claims import ClaimStore, step_of
from protocol.stream import OBJECT, Stream


class Retention:
    """Removes records of one run. ``settled``: seconds after which nobody is still between depositing a
    trajectory's arrays and publishing it."""

    def __init__(self, stream: Stream, claims: ClaimStore, run: str, settled: float):
        self._stream = stream
        self._claims = claims
        self._run = run
        self._settled = timedelta(seconds=settled)
        self._claimed: set[str] = set()
        """Objects that were found to belong to a trajectory on the log."""

    async def purge(self, first: int) -> None:
        """Remove the trajectories of the steps before ``first``, their objects, and their records of attempts."""
        for all_of in (subjects.trajectories, subjects.attempts):
            found = await self._stream.subjects(all_of(self._run, None))
            for step in sorted({subjects.step_of(subject) for subject in found}):
                if step < first:
                    await self._stream.purge(all_of(self._run, step))

    async def collect(self, first: int, before: int) -> int:
        """Remove objects that no trajectory on the log refers to, and return how many.

        Of steps before ``first``, which are purged, all of them; of steps before ``before``, which are over, those
        that have lain there for long enough. A killed process, or a lost server, leaves such objects.
        """
        entries = await self._claims.all()
        claimed = await self._claimed_among([entry.name for entry, _ in entries], first, before)
        removed = 0
        for entry, stored in entries:
            if entry.name not in claimed and self._may_go(entry.name, first, before, stored):
                await self._claims.delete(entry.name)
                removed += 1
        for nuid in await self._claims.chunk_names() - {entry.nuid for entry, _ in entries}:
            if self._may_go(nuid, first, before, await self._claims.chunks_stored(nuid)):
                await self._claims.delete_chunks(nuid)
                removed += 1
        return removed

    def _may_go(self, name: str, first: int, before: int, stored: datetime | None) -> bool:
        step = step_of(name)
        if step is None or step >= max(first, before):
            return False
        return step < first or stored is None or datetime.now(UTC) - stored > self._settled

    async def _claimed_among(self, names: list[str], first: int, before: int) -> set[str]:
        unknown = {step for name in names if name not in self._claimed and (step := step_of(name)) is not None}
        for step in sorted(unknown):
            if first <= step < before:
                for message in await self._stream.all(subjects.trajectories(self._run, step), headers_only=True):
                    if object := message.headers.get(OBJECT):
                        self._claimed.add(object)
        return self._claimed
