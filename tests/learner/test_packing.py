import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import make_streams

from learner.packing import efficiency, first_fit_decreasing, pack
from protocol.config import ConfigError


@given(st.lists(st.integers(1, 50), max_size=40))
def test_every_trajectory_lies_whole_in_one_row(lengths):
    rows = first_fit_decreasing(lengths, 50)
    assert sorted(i for row in rows for i in row) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in row) <= 50 for row in rows)
    # First fit leaves at most one row under half full.
    assert sum(2 * sum(lengths[i] for i in row) <= 50 for row in rows) <= 1


def test_first_fit_decreasing_by_hand():
    assert first_fit_decreasing([3, 7, 5, 5, 2], 10) == [[1, 0], [2, 3], [4]]


def test_a_trajectory_longer_than_a_row_is_refused():
    with pytest.raises(ConfigError, match="51 tokens does not fit a row of 50.*learner.row_tokens"):
        first_fit_decreasing([51], 50)


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
    assert efficiency(batches) == sum(len(s.ids) for s in streams) / (len(batches) * 128)
