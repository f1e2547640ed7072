"""Which trajectory lies in which row of which microbatch, before a token is read.

Invariant: a plan is a function of the trajectories' lengths and sampled counts and of the run's configuration alone,
so that every process of a run comes to the same one and then builds only the rows of its own devices. Every
trajectory lies whole in exactly one row.

**Few shapes.** A microbatch has rows of T tokens (``row_tokens``), T/2 or T/4, and R (``rows_per_microbatch``), 2R or
4R of them, never more than R x T tokens; a row has places of loss for one to four quarters of its tokens. That makes
at most 24 shapes, and so programs to compile, however long a run is. An update takes few of them: of every length full
microbatches, and for the rest the halves and quarters of one.

**Which lengths.** Attention computes a whole row's square, unless its kernel passes over pairs of different
segments; a trajectory in a row of T/4 costs a quarter. But fewer trajectories fit a shorter row, and each length has a
last microbatch to fill up. So each choice among the three is laid out, first-fit decreasing, and the cheapest is taken.
Rows that are there anyway, for longer trajectories or to complete a microbatch, are filled first.

**Balance.** Shards of the ``data`` axis wait for each other in every microbatch, so an update takes as long as the
sum of the slowest. All compute the same number of tokens and places, padding included; what differs is the pairs that
attention doesn't pass over, the sum of its segments' squares in a row. Rows are taken in order of it, so that alike
ones meet in a microbatch, and dealt out D at a time, each shard one. The sum of the slowest is then above an even
share by at most the heaviest row of each length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from protocol.config import ConfigError

VERSION = 2
"""Of the plan: which rows trajectories lie in decides the order of sums, and so the last bits of the weights."""
BLOCK = 128
"""Shorter rows are whole blocks of attention's queries, and chunks of the delta rule, so that neither fills up."""
HALVINGS = 2
SHARES = 4


class Work(NamedTuple):
    """Multiply-adds of one forward pass. Only their proportions matter here.

    ``token``: of a token, through every layer; ``pair``: times L squared, of a segment of L tokens, in attention, by
    its causal half; ``place``: of a place of loss, under the head. ``skips``: attention passes over pairs of
    different segments, and doesn't compute a row's square.
    """

    token: float = 1.0
    pair: float = 0.0
    place: float = 0.0
    skips: bool = False


TOKENS_ALONE = Work()


class Layout(NamedTuple):
    """One microbatch: ``rows`` of ``tokens`` tokens and ``places`` places of loss, each with the numbers of its
    trajectories in order. Shard s of D has the s-th of D equal parts of the rows."""

    tokens: int
    places: int
    rows: tuple[tuple[int, ...], ...]


def plan(
    lengths: Sequence[int],
    sampled: Sequence[int],
    row_tokens: int,
    rows_per_microbatch: int,
    shards: int = 1,
    work: Work = TOKENS_ALONE,
) -> list[Layout]:
    """The microbatches of an update: trajectory i has ``lengths[i]`` tokens, ``sampled[i]`` of them with a loss.

    ``rows_per_microbatch`` is a multiple of ``shards``. Raises :class:`ConfigError` when a trajectory is longer than
    a row.
    """
    if max(lengths, default=0) > row_tokens:
        raise ConfigError(
            f"a trajectory of {max(lengths)} tokens does not fit a row of {row_tokens}: raise learner.row_tokens "
            f"to at least rollout.limits.episode_tokens, or lower the latter"
        )
    lengths, sampled = np.asarray(lengths, np.int64), np.asarray(sampled, np.int64)

    def layouts(ladder: tuple[int, ...]) -> list[Layout]:
        rows = fill(lengths, ladder, rows_per_microbatch)
        most = row_tokens * rows_per_microbatch
        return [
            Layout(tokens, _places(group, sampled, tokens), _dealt(group, lengths, shards))
            for tokens in ladder
            for group in _microbatches(rows[tokens], lengths, rows_per_microbatch, most // tokens)
        ]

    def cost(plan: list[Layout]) -> tuple[float, int]:
        return sum(_cost(layout, lengths, work) for layout in plan), len(plan)

    return min(map(layouts, _ladders(row_tokens, lengths.max(initial=0))), key=cost)


def efficiency(layouts: Sequence[Layout], lengths: Sequence[int]) -> float:
    """Real tokens over computed tokens, of a whole update."""
    computed = sum(len(layout.rows) * layout.tokens for layout in layouts)
    return float(sum(lengths)) / computed if computed else 0.0


def _ladders(row_tokens: int, longest: int) -> Iterator[tuple[int, ...]]:
    """The choices of row lengths, each descending, that have room for the longest trajectory."""
    lengths = [row_tokens >> k for k in range(HALVINGS + 1) if k == 0 or row_tokens % (BLOCK << k) == 0]
    for count in range(1, len(lengths) + 1):
        yield from (ladder for ladder in combinations(lengths, count) if ladder[0] >= longest)


def fill(
    lengths: Sequence[int] | np.ndarray, ladder: tuple[int, ...], multiple: int
) -> dict[int, list[tuple[int, ...]]]:
    """Rows of each length, their number a multiple of ``multiple``: longest trajectory first, each into the first row
    that is there and has room, or else into a new one of the shortest length that it fits."""
    lengths = np.asarray(lengths, np.int64)
    order = np.argsort(-lengths, kind="stable")
    members: list[list[int]] = []
    sizes: list[int] = []
    room = np.zeros(len(order) + multiple * len(ladder), np.int64)

    def add(size: int) -> None:
        room[len(members)] = size
        members.append([])
        sizes.append(size)

    for size, shorter in zip(ladder, [*ladder[1:], 0], strict=True):
        for i in order[(lengths[order] <= size) & (lengths[order] > shorter)]:
            row = int(np.argmax(room >= lengths[i]))
            if room[row] < lengths[i]:
                row = len(members)
                add(size)
            members[row].append(int(i))
            room[row] -= lengths[i]
        for _ in range(-sizes.count(size) % multiple):
            add(size)
    return {size: [tuple(m) for m, s in zip(members, sizes, strict=True) if s == size] for size in ladder}


def _microbatches(rows: list[tuple[int, ...]], lengths: np.ndarray, least: int, most: int):
    """``rows`` in order of attention's work, heaviest first, ``most`` at a time; what is left in halves, quarters, ...
    of that, so that none is empty for the shape's sake. Their number is a multiple of ``least``."""
    rows = sorted(rows, key=lambda row: -_pairs(row, lengths))
    while rows:
        size = most
        while size > len(rows):
            size //= 2
        yield rows[:size]
        rows = rows[size:]


def _dealt(rows: list[tuple[int, ...]], lengths: np.ndarray, shards: int) -> tuple[tuple[int, ...], ...]:
    """``rows``, heaviest first, as each shard's in turn: of every D rows each shard gets one, the heaviest going to
    the shard with the least so far."""
    dealt: list[list[tuple[int, ...]]] = [[] for _ in range(shards)]
    for start in range(0, len(rows), shards):
        by_load = sorted(range(shards), key=lambda s: sum(_pairs(row, lengths) for row in dealt[s]))
        for shard, row in zip(by_load, rows[start : start + shards], strict=True):
            dealt[shard].append(row)
    return tuple(row for part in dealt for row in part)


def _pairs(row: Sequence[int], lengths: np.ndarray) -> int:
    return sum(int(lengths[i]) ** 2 for i in row)


def _places(rows: list[tuple[int, ...]], sampled: np.ndarray, tokens: int) -> int:
    """The smallest share of a row that holds the fullest row's places, of which there is at least one."""
    fullest = max((int(sampled[list(row)].sum()) for row in rows), default=0)
    return next(s for q in range(1, SHARES + 1) if (s := -(-tokens * q // SHARES)) >= max(fullest, 1))


def _cost(layout: Layout, lengths: np.ndarray, work: Work) -> float:
    count = len(layout.rows)
    pairs = sum(_pairs(row, lengths) for row in layout.rows) if work.skips else count * layout.tokens**2
    return work.token * count * layout.tokens + work.place * count * layout.places + work.pair * pairs
