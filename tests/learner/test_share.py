"""Each process reads its own rows, and together they make the update that one process would."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import msgspec
import numpy as np
import pytest
from tiny import make_batch, make_config

from learner import share as module
from learner.batches import Delivery
from learner.errors import BatchError
from learner.layout import TOKENS_ALONE
from learner.share import share
from learner.step import Totals


def delivered(batch, trajectories):
    """(delivery, ids that were fetched)"""
    known, asked = {trajectory.id: trajectory for trajectory in trajectories}, []

    def fetch(ids):
        asked.extend(ids)
        return [known[id] for id in ids]

    return Delivery(batch, fetch, lambda: None), asked


@pytest.fixture
def part(tmp_path, monkeypatch):
    """The share of process ``index`` of ``count``, each with one row of a 4x2 mesh's devices or more."""

    def of(index, count, batch, trajectories, step=3, max_staleness=0):
        devices = [[SimpleNamespace(process_index=d * count // 4)] * 2 for d in range(4)]
        mesh = SimpleNamespace(devices=np.array(devices), shape={"data": 4, "model": 2})
        monkeypatch.setattr(jax, "process_index", lambda: index)
        delivery, asked = delivered(batch, trajectories)
        config = make_config(tmp_path, max_staleness, row_tokens=128)
        return share(delivery, step, config.rollout, config.learner, mesh, TOKENS_ALONE), asked

    return of


@pytest.mark.parametrize("count", [2, 4])
def test_together_they_read_each_trajectory_once_and_make_the_whole_update(part, count):
    batch, trajectories = make_batch(3, groups=4)
    whole, everything = part(0, 1, batch, trajectories)
    assert sorted(everything) == sorted(t.id for t in trajectories)
    first = min(t.id for t in trajectories)
    parts, read = [], []
    for index in range(count):
        mine, asked = part(index, count, batch, trajectories)
        parts.append(mine)
        read.append(set(asked) - {first})
        assert len(asked) == len(set(asked)) < len(trajectories)
        assert (mine.totals, mine.lengths, mine.sampled) == (whole.totals, whole.lengths, whole.sampled)
        assert mine.efficiency == whole.efficiency
        np.testing.assert_array_equal(mine.first.ids, whole.first.ids)
    assert sum(map(len, read)) == len(set().union(*read)) == len(trajectories) - 1
    for m, microbatch in enumerate(whole.microbatches):
        for name, array in microbatch._asdict().items():
            np.testing.assert_array_equal(np.concatenate([p.microbatches[m]._asdict()[name] for p in parts]), array)


def test_what_an_update_counts_is_of_all_rows(part):
    batch, trajectories = make_batch(3)
    whole, _ = part(0, 1, batch, trajectories)
    assert whole.totals == Totals.of(whole.microbatches)
    assert whole.totals.tokens == sum(int(t.tokens.unpack().mask.sum()) for t in trajectories)
    mine, _ = part(1, 4, batch, trajectories)
    assert Totals.of(mine.microbatches).tokens < mine.totals.tokens


def test_a_log_without_counts_is_read_whole_to_the_same_end(part):
    batch, trajectories = make_batch(3, groups=4)
    old = msgspec.structs.replace(
        batch, groups=tuple(msgspec.structs.replace(group, tokens=(), sampled=()) for group in batch.groups)
    )
    new_part, old_part = part(1, 4, batch, trajectories), part(1, 4, old, trajectories)
    assert len(new_part[1]) < len(old_part[1]) == len(trajectories)
    assert new_part[0].layouts == old_part[0].layouts and new_part[0].totals == old_part[0].totals
    for a, b in zip(new_part[0].microbatches, old_part[0].microbatches, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)


def test_a_trajectory_that_is_not_what_the_manifest_counts_is_refused(part):
    batch, trajectories = make_batch(3)
    group = batch.groups[0]
    longer = (group.tokens[0] + 1, *group.tokens[1:])
    spoilt = msgspec.structs.replace(batch, groups=(msgspec.structs.replace(group, tokens=longer), batch.groups[1]))
    with pytest.raises(BatchError, match=rf"has {group.tokens[0]} tokens, .* the batch says {longer[0]} and"):
        part(0, 1, spoilt, trajectories)


def test_staleness_is_that_of_all_rows(part, monkeypatch):
    batch, trajectories = make_batch(3, older=1)
    whole, _ = part(0, 1, batch, trajectories, max_staleness=1)
    sums = []
    monkeypatch.setattr(module, "gathered", lambda values: sums.append(values) or values[None])
    for index in range(4):
        part(index, 4, batch, trajectories, max_staleness=1)
    total = np.array(sums)
    assert (total[:, 0].sum() / total[:, 1].sum(), total[:, 2].max()) == whole.staleness
    assert 0 < whole.staleness[0] < 1 == whole.staleness[1]


def test_an_update_of_nothing(part):
    mine, asked = part(0, 1, *make_batch(3, equal=True))
    assert (mine.microbatches, mine.totals, mine.first, asked) == ([], Totals(0, False), None, [])
    assert mine.staleness == (0.0, 0.0) and mine.efficiency == 0.0
