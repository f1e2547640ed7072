"""A run's log in memory, as the engine sees it."""

from __future__ import annotations

import msgspec

from protocol.records import Verdict


class MemoryLog:
    """What the engine asks of a bus. A (step, group, sample) is logged once, as on the real one."""

    def __init__(self):
        self.logged, self.records, self.batches, self.events, self.waited = {}, [], {}, [], []
        self.stop_after = None
        self.lost_acknowledgements = set()
        self.waited_for_room = 0.0

    def held_up(self):
        return self.waited_for_room

    async def trajectories(self, step, arrays=True):
        return [t for (s, _, _), t in sorted(self.logged.items()) if s == step]

    async def publish_trajectory(self, trajectory):
        id = trajectory.id
        place = (id.step, id.group, id.sample)
        if place in self.lost_acknowledgements:
            # Another engine's sample got there first, with its own attempt number and reward.
            first = replace_id(trajectory, attempt=7)
            self.logged.setdefault(place, msgspec.structs.replace(first, verdict=Verdict(0.0, ("the first",))))
        if place in self.logged:
            return False
        if len(self.logged) == self.stop_after:
            raise Killed
        self.logged[place] = trajectory
        return True

    async def publish_attempts(self, record):
        self.records.append(record)

    async def attempts(self, step):
        return [record for record in self.records if record.step == step]

    async def batch(self, step):
        return self.batches.get(step)

    async def publish_batch(self, batch):
        return self.batches.setdefault(batch.step, batch) is batch

    async def wait_policy(self, version):
        self.waited.append(version)

    async def emit(self, kind, data):
        self.events.append((kind, data))


class Killed(Exception):
    """Stands for kill -9."""


def replace_id(trajectory, **fields):
    return msgspec.structs.replace(trajectory, id=msgspec.structs.replace(trajectory.id, **fields))
