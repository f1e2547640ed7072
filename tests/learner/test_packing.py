import numpy as np
import pytest
from tiny import make_streams

from learner.layout import Layout
from learner.packing import Microbatch, build, one_shape, pack


def test_each_place_predicts_its_token_within_its_segment():
    streams = make_streams(7)
    batches = pack(streams, 64, 2)
    found = []
    for batch in batches:
        assert batch.ids.shape == (2, 64)
        for r in range(2):
            for j in np.flatnonzero(batch.valid[r]):
                at = batch.index[r, j]
                assert batch.segments[r, at] == batch.segments[r, at + 1] > 0
                assert batch.ids[r, at + 1] == batch.targets[r, j]
                assert batch.positions[r, at + 1] == batch.positions[r, at] + 1
                found.append((batch.weights[r, j], batch.behaviour[r, j]))
    wanted = [pair for s in streams for pair in zip(s.weights, s.behaviour, strict=True)]
    assert sorted(found) == sorted(wanted)
    assert sum((batch.segments > 0).sum() for batch in batches) == sum(len(s.ids) for s in streams)


def test_a_process_builds_its_rows_from_its_streams_alone():
    streams = make_streams(4, longest=30)
    layout = Layout(64, 32, ((0, 2), (), (3,), (1,)))
    whole = build(layout, streams)
    part = build(layout, {1: streams[1], 3: streams[3]}, slice(2, 4))
    for name in Microbatch._fields:
        np.testing.assert_array_equal(getattr(part, name), getattr(whole, name)[2:])
    assert not whole.segments[1].any() and not whole.valid[1].any()


def test_what_is_always_of_one_shape():
    batch = one_shape(make_streams(3), 64, 4)
    assert batch.ids.shape == batch.valid.shape == (4, 64)
    with pytest.raises(ValueError, match="5 streams take"):
        one_shape(make_streams(5, longest=60), 64, 1)
