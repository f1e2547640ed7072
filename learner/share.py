"""What an update is made of, and this process's share of it.

Invariant: every process comes to the same plan from the manifest alone, and then reads from the log only what lies in
the rows of its own devices. What an update counts (tokens, lengths, whether anything has an advantage) is that of all
rows, whoever reads them. Where a log doesn't record the lengths, each process reads everything, to the same end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from jax.sharding import Mesh

from learner.batches import Delivery
from learner.layout import Layout, Work, efficiency, plan
from learner.mesh import DATA, own_rows
from learner.packing import Microbatch, Stream, build
from learner.processes import gathered
from learner.step import Totals
from learner.streams import members, staleness, stream
from protocol.config import Learner, Rollout
from protocol.records import Trajectory


class Share(NamedTuple):
    """An update as one process makes it."""

    microbatches: list[Microbatch]
    """Their rows of this process."""
    totals: Totals
    lengths: list[int]
    """Tokens of each trajectory of the update."""
    sampled: list[int]
    layouts: list[Layout]
    first: Stream | None
    """The update's first, which every process has; None where it has none."""
    staleness: tuple[float, float]
    """(mean, maximum) over sampled tokens of the updates made since each was sampled."""

    @property
    def efficiency(self) -> float:
        """Real tokens over computed tokens."""
        return efficiency(self.layouts, self.lengths)


def share(delivery: Delivery, step: int, rollout: Rollout, learner: Learner, mesh: Mesh, work: Work) -> Share:
    """This process's share of the update of ``step``. Raises :class:`~learner.errors.BatchError`."""
    max_staleness, support = rollout.max_staleness, rollout.sampling.support
    found = members(delivery.batch, step, max_staleness)
    trajectories: dict[int, Trajectory] = {}
    streams: dict[int, Stream] = {}

    def read(wanted: Iterable[int]) -> None:
        wanted = sorted(set(wanted) - streams.keys())
        for i, trajectory in zip(wanted, delivery.fetch([found[i].id for i in wanted]), strict=True):
            trajectories[i], streams[i] = trajectory, stream(found[i], trajectory, step, max_staleness, support)

    if any(member.tokens is None for member in found):
        read(range(len(found)))
    lengths = [len(streams[i].ids) if m.tokens is None else m.tokens for i, m in enumerate(found)]
    sampled = [len(streams[i].sampled) if m.sampled is None else m.sampled for i, m in enumerate(found)]
    layouts = plan(lengths, sampled, learner.row_tokens, learner.rows_per_microbatch, mesh.shape[DATA], work)
    rows = [own_rows(mesh, len(layout.rows)) for layout in layouts]
    own = sorted({i for layout, mine in zip(layouts, rows, strict=True) for row in layout.rows[mine] for i in row})
    # The first one's tokens are the next probe's, which all processes compute.
    read([*own, *range(min(1, len(found)))])
    ages = staleness([trajectories[i] for i in own], step)
    parts = gathered(np.array(ages))
    return Share(
        microbatches=[build(layout, streams, mine, support) for layout, mine in zip(layouts, rows, strict=True)],
        totals=Totals(sum(sampled), any(member.advantage != 0 for member in found)),
        lengths=lengths,
        sampled=sampled,
        layouts=layouts,
        first=streams.get(0),
        staleness=(float(parts[:, 0].sum() / max(1, parts[:, 1].sum())), float(parts[:, 2].max())),
    )
