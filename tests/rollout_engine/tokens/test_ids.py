"""A view never changes, and taking or writing one costs what is new."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_engine.tokens import ids as module
from rollout_engine.tokens.ids import IdLog, raw_json

CHUNKS = st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=5), max_size=6)


@given(CHUNKS, st.randoms(use_true_random=False))
def test_views_are_prefixes_for_ever(chunks, random):
    log, views, whole = IdLog(), [], []
    for chunk in chunks:
        log.extend(chunk)
        whole += chunk
        views.append((log.view(), list(whole)))
    random.shuffle(views)
    for view, ids in views:
        assert view == ids and ids == view and list(view) == ids and len(view) == len(ids)
        assert json.loads(view.json()) == ids
        assert json.loads(msgspec.json.encode({"ids": raw_json(view)})) == {"ids": ids}


def test_a_view_reads_like_a_list():
    log = IdLog()
    log.extend([1, 2, 3])
    view = log.view()
    log.extend([4])
    assert (view[0], view[-1], view[1:], view[::-1]) == (1, 3, [2, 3], [3, 2, 1])
    assert 3 in view and 4 not in view and view != [1, 2] and view != "123"
    with pytest.raises(IndexError):
        view[3]


def test_an_append_is_whole_or_nothing():
    log = IdLog()
    with pytest.raises(OverflowError):
        log.extend([1, 2**40])
    assert len(log) == 0


def test_writing_a_view_encodes_only_new_ids(monkeypatch):
    encoded, encode = [], msgspec.json.encode

    def counting(ids):
        encoded.append(len(ids))
        return encode(ids)

    monkeypatch.setattr(module.msgspec.json, "encode", counting, raising=True)
    log = IdLog()
    for _ in range(50):
        log.extend(range(10))
        log.view().json()
        log.view().json()
    assert encoded == [10] * 50


def test_a_plain_list_is_written_as_it_is():
    assert bytes(raw_json([1, 2])) == b"[1,2]"
