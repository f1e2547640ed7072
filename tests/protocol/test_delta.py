"""Changes between two files, applied to the one, give the other."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import delta


def bytes_of(words) -> np.ndarray:
    return np.asarray(words, "<u2").view(np.uint8)


def rebuilt(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    file = old.copy()
    for change in delta.changes(old, new, 0):
        delta.apply(change, file)
    return file


def written(path, records) -> None:
    path.write_bytes(b"".join(record.encode() for record in records))


@given(
    st.integers(0, 2**32 - 1), st.integers(1, 3000), st.sampled_from([0.0, 0.001, 0.02, 0.1, 0.5, 1.0]), st.booleans()
)
def test_any_two_files_are_told_apart_exactly(seed, words, share, near):
    rng = np.random.default_rng(seed)
    old = rng.integers(0, 2**16, words, np.uint16)
    other = old + rng.integers(-2, 3, words).astype(np.uint16) if near else rng.integers(0, 2**16, words, np.uint16)
    new = np.where(rng.random(words) < share, other, old)
    np.testing.assert_array_equal(rebuilt(bytes_of(old), bytes_of(new)), bytes_of(new))


@pytest.mark.parametrize("places", [[0], [254], [255], [256], [509, 510, 511], [0, 255, 511, 4095], list(range(4096))])
def test_gaps_on_the_edges_of_their_coding(places):
    old = np.zeros(4096, np.uint16)
    new = old.copy()
    new[places] = np.resize([1, 127, 128, 129, 2**15, 2**16 - 1, 2**16 - 128], len(places))
    np.testing.assert_array_equal(rebuilt(bytes_of(old), bytes_of(new)), bytes_of(new))


def test_stretches_have_records_of_their_own(monkeypatch):
    monkeypatch.setattr(delta, "STRETCH", 64)
    old = bytes_of(np.arange(100))
    new = old.copy()
    new[2 * 31], new[2 * 99] = 255, 255
    found = list(delta.changes(old, new, 6))
    assert [(change.start, change.words, change.count) for change in found] == [(6, 32, 1), (6 + 192, 4, 1)]


def test_the_shorter_coding_of_places_is_taken():
    old = np.zeros(8000, np.uint16)
    sparse, dense = old.copy(), old.copy()
    sparse[::100], dense[::2] = 1, 1
    codings = [next(delta.changes(bytes_of(old), bytes_of(new), 0)).coding for new in (sparse, dense)]
    assert codings == ["gaps", "mask"]


def test_two_in_a_hundred_changed_by_a_step_take_a_seventieth():
    """About what an update at 1e-6 does to weights of deviation 0.02."""
    rng = np.random.default_rng(0)
    old = rng.integers(0, 2**16, 10**6, np.uint16)
    new = old + np.where(rng.random(len(old)) < 0.02, rng.choice([-1, 1], len(old)), 0).astype(np.uint16)
    size = sum(len(change.encode()) for change in delta.changes(bytes_of(old), bytes_of(new), 0))
    assert size < 2 * len(old) / 70


def test_a_file_that_was_rewritten_takes_no_more_than_itself_and_its_places():
    rng = np.random.default_rng(0)
    old, new = rng.integers(0, 2**16, (2, 10**5), np.uint16)
    size = sum(len(change.encode()) for change in delta.changes(bytes_of(old), bytes_of(new), 0))
    assert size < 1.1 * 2 * len(old)


def test_a_delta_file_is_read_back_and_one_that_is_cut_is_refused(tmp_path):
    rng = np.random.default_rng(0)
    old, new = rng.integers(0, 9, (2, 500), np.uint16)
    found = list(delta.changes(bytes_of(old), bytes_of(new), 0))
    path = tmp_path / "a.delta"
    written(path, found)
    assert list(delta.read(path)) == found
    whole = path.read_bytes()
    for length, said in [(2, "ends in the length"), (len(whole) - 1, "ends within a record"), (-1, "that is none")]:
        path.write_bytes(whole[:length] if length > 0 else b"\1\0\0\0\0")
        with pytest.raises(ValueError, match=said):
            list(delta.read(path))


@pytest.mark.parametrize(
    "wrong",
    [{"start": 100}, {"words": 10**6}, {"words": 20}, {"count": 3}, {"places": b"x"}, {"steps": b""}, {"far": b"ab"}],
)
def test_a_record_that_does_not_fit_the_file_is_refused(wrong):
    old = bytes_of(np.zeros(60))
    new = bytes_of(np.arange(60))
    (change,) = delta.changes(old, new, 0)
    with pytest.raises(ValueError):
        delta.apply(msgspec.structs.replace(change, **wrong), old.copy())
