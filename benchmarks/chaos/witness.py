"""Somebody who watches the log from outside and remembers what was ever in it.

Invariant: what the witness has seen was acknowledged by the server, so it must be in the log at the end, unchanged.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import trio

from protocol.bus import BusError, connect
from protocol.config import Config
from protocol.records import TrajectoryId, encode


@dataclass
class Witness:
    config: Config
    trajectories: dict[TrajectoryId, str] = field(default_factory=dict)
    """Digest by id, arrays left out where a claim check stands for them."""
    batches: dict[int, str] = field(default_factory=dict)
    policies: dict[int, dict[str, str]] = field(default_factory=dict)
    """Digests of the weights by version."""

    def progress(self) -> int:
        """Manifests and policy versions so far."""
        return len(self.batches) + len(self.policies)

    async def watch(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            try:
                async with connect(self.config.nats, self.config.run, create=False) as bus:
                    while True:
                        for step in await bus.steps():
                            if step not in self.batches:
                                for trajectory in await bus.trajectories(step, arrays=False):
                                    self.trajectories[trajectory.id] = digest(trajectory)
                            batch = await bus.batch(step)
                            if batch is not None:
                                self.batches[step] = digest(batch)
                        for policy in await bus.policies():
                            self.policies[policy.version] = policy.sha256
                        await trio.sleep(0.5)
            except BusError:  # the server is being killed
                await trio.sleep(0.5)


def digest(record) -> str:
    return hashlib.sha256(encode(record)).hexdigest()
