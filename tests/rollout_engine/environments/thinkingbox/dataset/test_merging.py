import copy

from hypothesis import given
from hypothesis import strategies as st

from rollout_engine.environments.thinkingbox.dataset.merging import merge, merge_world

TREES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=10,
)


def test_dicts_merge_lists_join_and_anything_else_is_replaced():
    first = {"rows": [1], "deep": {"a": 1, "b": [1]}, "only": 1, "kind": {"x": 1}, "word": "old"}
    second = {"rows": [2], "deep": {"b": [2], "c": 3}, "kind": [1], "word": None}
    assert merge(first, second) == {
        "rows": [1, 2],
        "deep": {"a": 1, "b": [1, 2], "c": 3},
        "only": 1,
        "kind": [1],
        "word": None,
    }


@given(TREES, TREES)
def test_neither_side_is_changed(first, second):
    before = copy.deepcopy((first, second))
    merge(first, second)
    assert (first, second) == before


@given(TREES, TREES, TREES)
def test_merging_dicts_is_associative(a, b, c):
    a, b, c = {"k": a}, {"k": b}, {"k": c}
    if all(isinstance(tree["k"], dict) for tree in (a, b, c)) and _plain(a) and _plain(b) and _plain(c):
        assert merge(merge(a, b), c) == merge(a, merge(b, c))


def _plain(tree):
    """Whether it holds dicts and lists only: replacing one kind by another isn't associative."""
    return isinstance(tree, list) or isinstance(tree, dict) and all(_plain(value) for value in tree.values())


def test_servers_keep_their_order_and_new_ones_come_last():
    world = merge_world(
        {"b": {"x": 1}, "a": None, "c": {}}, {"a": {"y": 2}, "d": {"z": 3}, "b": {"x": 2}, "c": {"w": 1}}
    )
    assert list(world.items()) == [("b", {"x": 2}), ("a", {"y": 2}), ("c", {"w": 1}), ("d", {"z": 3})]
