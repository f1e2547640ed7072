"""Full collections come at the heap's bidding alone, and as often as the episodes that ended call for."""

import gc

import pytest

from rollout_engine.heap import Heap, paced_collections


@pytest.fixture
def collections(monkeypatch):
    found = []
    monkeypatch.setattr(gc, "collect", lambda: found.append(1))
    return found


def run(heap, count):
    for _ in range(count):
        with heap.episode():
            pass


def test_the_more_episodes_are_open_the_more_must_end_before_a_collection(collections):
    heap = Heap()
    run(heap, 10_000)
    assert len(collections) == 10
    collections.clear()
    open_ones = [heap.episode() for _ in range(500)]
    for one in open_ones:
        one.__enter__()
    run(heap, 1000 + 16 * 500 - 1)
    assert len(collections) == 0
    run(heap, 1)
    assert len(collections) == 1


def test_an_episode_that_fails_counts(collections):
    heap = Heap()
    for _ in range(1000):
        with pytest.raises(KeyError), heap.episode():
            raise KeyError
    assert len(collections) == 1


def test_python_itself_runs_no_full_collection_inside_and_as_ever_after():
    before = gc.get_threshold()
    with paced_collections():
        full = gc.get_stats()[2]["collections"]
        kept = [[[]] for _ in range(300_000)]
        assert gc.get_stats()[2]["collections"] == full
        assert gc.get_freeze_count() > 0
        del kept
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
