import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.layout import TOKENS_ALONE, Layout, Work, efficiency, fill, plan
from protocol.config import ConfigError

ROW = 1024
DENSE = Work(token=1.0, pair=0.01, place=1.0)


@st.composite
def updates(draw):
    """(lengths, sampled counts, rows a microbatch, shards, work), lengths skewed as those of tool use are."""
    count = draw(st.integers(0, 60))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    lengths = np.clip(rng.lognormal(draw(st.floats(3.0, 7.0)), 1.0, count), 2, ROW).astype(int)
    sampled = (1 + (lengths - 2) * rng.random(count) * draw(st.floats(0.0, 1.0))).astype(int)
    shards = draw(st.integers(1, 4))
    rows = shards * draw(st.integers(1, 3))
    work = draw(st.sampled_from([TOKENS_ALONE, DENSE, DENSE._replace(skips=True)]))
    return lengths, sampled, rows, shards, work


def pairs(row, lengths):
    return sum(int(lengths[i]) ** 2 for i in row)


def shards_of(layout: Layout, shards: int):
    each = len(layout.rows) // shards
    return [layout.rows[s * each : (s + 1) * each] for s in range(shards)]


@given(updates())
def test_every_trajectory_lies_whole_in_one_row_that_has_room(update):
    lengths, sampled, rows, shards, work = update
    layouts = plan(lengths, sampled, ROW, rows, shards, work)
    members = [row for layout in layouts for row in layout.rows]
    assert sorted(i for row in members for i in row) == list(range(len(lengths)))
    for layout in layouts:
        assert all(sum(lengths[i] for i in row) <= layout.tokens for row in layout.rows)
        assert all(sum(sampled[i] for i in row) <= layout.places for row in layout.rows)
    assert layouts == plan(list(lengths), list(sampled), ROW, rows, shards, work)


@given(st.lists(updates(), min_size=5, max_size=5), st.integers(1, 3))
def test_few_shapes_are_ever_compiled(batches, rows):
    shapes = set()
    for lengths, sampled, _, _, work in batches:
        layouts = plan(lengths, sampled, ROW, rows, 1, work)
        for layout in layouts:
            assert len(layout.rows) * layout.tokens <= rows * ROW
            assert len(layout.rows) in (rows, 2 * rows, 4 * rows)
            assert layout.tokens in (ROW, ROW // 2, ROW // 4)
            assert layout.places in [layout.tokens * quarters // 4 for quarters in (1, 2, 3, 4)]
            shapes.add((len(layout.rows), layout.tokens, layout.places))
        # What no full microbatch takes comes in halves and quarters, one of each.
        parts = [(len(x.rows), x.tokens) for x in layouts if len(x.rows) * x.tokens < rows * ROW]
        assert len(parts) == len(set(parts))
    assert len(shapes) <= 24


@given(updates())
def test_the_slowest_shards_do_an_even_share_and_a_row_of_each_length(update):
    lengths, sampled, rows, shards, work = update
    layouts = plan(lengths, sampled, ROW, rows, shards, work)
    slowest = sum(max(sum(pairs(row, lengths) for row in part) for part in shards_of(x, shards)) for x in layouts)
    even = pairs(range(len(lengths)), lengths) / shards
    heaviest = {}
    for layout in layouts:
        heaviest[layout.tokens] = max([heaviest.get(layout.tokens, 0), *(pairs(row, lengths) for row in layout.rows)])
    assert slowest <= even + sum(heaviest.values())


@given(updates())
def test_a_choice_of_lengths_is_never_dearer_than_whole_rows(update):
    lengths, sampled, rows, shards, work = update

    def cost(layouts):
        computed = sum(len(x.rows) * (work.token * x.tokens + work.place * x.places) for x in layouts)
        dense = sum(len(x.rows) * x.tokens**2 for x in layouts)
        return computed + work.pair * (pairs(range(len(lengths)), lengths) if work.skips else dense)

    whole = fill(lengths, (ROW,), rows)[ROW]
    fullest = max((sum(sampled[i] for i in row) for row in whole), default=0)
    places = max(1, -(-fullest * 4 // ROW)) * ROW // 4
    # One row at a time: whatever microbatches they come in, they cost no less than with places to the fullest's need.
    assert cost(plan(lengths, sampled, ROW, rows, shards, work)) <= cost(
        [Layout(ROW, places, (row,)) for row in whole]
    ) * (1 + 1e-12)


def test_first_fit_decreasing_by_hand():
    assert fill([3, 7, 5, 5, 2], (10,), 1) == {10: [(1, 0), (2, 3), (4,)]}
    # The short ones fill the long one's row, and the rows that complete its microbatch, before any of their own.
    assert fill([3, 9, 4, 5, 5, 4], (10, 5), 2) == {10: [(1,), (3, 4)], 5: [(2,), (5,), (0,), ()]}


def test_a_short_batch_does_not_pay_for_whole_rows():
    (layout,) = plan([200, 250], [10, 10], ROW, 2)
    assert layout == Layout(256, 64, ((1,), (0,)))
    assert efficiency([layout], [200, 250]) == 450 / 512


def test_shorter_rows_save_attention_squares_unless_its_kernel_does():
    lengths, sampled = [700] * 2 + [250] * 8, [100] * 10
    assert {x.tokens for x in plan(lengths, sampled, ROW, 1, 1, DENSE)} == {1024, 256}
    skips = plan(lengths, sampled, ROW, 1, 1, DENSE._replace(skips=True))
    assert efficiency(skips, lengths) >= efficiency(plan(lengths, sampled, ROW, 1, 1, DENSE), lengths)


def test_alike_rows_meet_in_a_microbatch():
    lengths = [1000, 600, 590, 580, 430, 425]
    assert fill(lengths, (ROW,), 2) == {ROW: [(0,), (1,), (2, 4), (3, 5)]}
    first, second = plan(lengths, [1] * 6, ROW, 2, 2)
    assert (first.rows, second.rows) == (((0,), (2, 4)), ((3, 5), (1,)))


def test_rows_of_few_or_odd_tokens_are_not_halved():
    assert {x.tokens for x in plan([10], [1], 200, 1)} == {200}
    assert {x.tokens for x in plan([10], [1], 256, 1)} == {128}


def test_without_trajectories_there_is_no_microbatch():
    assert plan([], [], ROW, 4) == []
    assert efficiency([], []) == 0.0


def test_a_trajectory_longer_than_a_row_is_refused():
    with pytest.raises(ConfigError, match="51 tokens does not fit a row of 50.*learner.row_tokens"):
        plan([51], [1], 50, 1)
