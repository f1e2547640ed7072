"""Trajectories to packed rows, as a plan has laid them out.

Invariant (rule 19): a row holds whole segments, each with its own id from 1 and positions from 0; segment 0
is padding. Only where a sampled token is predicted does a log-probability exist, so those places are listed
by index, and the head is applied there and nowhere else. Which row a trajectory lands in changes nothing in
the loss or its gradient: every trajectory keeps its own advantage, and the denominator is the batch's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from learner.layout import TOKENS_ALONE, Layout, Work, fill, plan


class Stream(NamedTuple):
    """One token stream to learn from. ``ids`` int32 [T]; ``sampled`` int32 [S]: positions (> 0) of the tokens
    with a loss; ``weights``, ``behaviour`` float32 [S]: advantage (or loss weight) and log-probability of each;
    ``support`` int32 [S, K]: the ids that each was sampled from, -1 where there are fewer than K. None: all of them."""

    ids: np.ndarray
    sampled: np.ndarray
    weights: np.ndarray
    behaviour: np.ndarray
    support: np.ndarray | None = None


class Microbatch(NamedTuple):
    """R packed rows of T tokens with up to S places of loss each; a pytree of fixed shapes.

    ``ids``, ``segments``, ``positions``  int32 [R, T].
    ``index``      int32 [R, S]: position whose hidden state predicts the target (its own position - 1).
    ``targets``    int32 [R, S]; ``valid`` bool [R, S]: False on padding of the list.
    ``weights``    float32 [R, S]: advantages; ``behaviour`` float32 [R, S]: log-probabilities when sampled.
    ``support``    int32 [R, S, K]: the ids that each was sampled from, then -1. K is 0 where that was the vocabulary.
    """

    ids: np.ndarray
    segments: np.ndarray
    positions: np.ndarray
    index: np.ndarray
    targets: np.ndarray
    valid: np.ndarray
    weights: np.ndarray
    behaviour: np.ndarray
    support: np.ndarray


def build(
    layout: Layout, streams: Mapping[int, Stream] | Sequence[Stream], rows: slice = slice(None), support: int = 0
) -> Microbatch:
    """The ``rows`` of a microbatch: all of them, or those of this process's devices, whose ``streams`` alone are
    looked at. ``support`` is the width K of theirs, 0 where they have none."""
    members = layout.rows[rows]
    count, length, places = len(members), layout.tokens, layout.places
    out = Microbatch(
        *(np.zeros((count, length), np.int32) for _ in range(3)),
        *(np.zeros((count, places), np.int32) for _ in range(2)),
        np.zeros((count, places), bool),
        *(np.zeros((count, places), np.float32) for _ in range(2)),
        np.full((count, places, support), -1, np.int32),
    )
    for r, row in enumerate(members):
        start = place = 0
        for segment, i in enumerate(row, 1):
            stream = streams[i]
            tokens = slice(start, start + len(stream.ids))
            out.ids[r, tokens] = stream.ids
            out.segments[r, tokens] = segment
            out.positions[r, tokens] = np.arange(len(stream.ids))
            losses = slice(place, place + len(stream.sampled))
            out.index[r, losses] = start + stream.sampled - 1
            out.targets[r, losses] = stream.ids[stream.sampled]
            out.valid[r, losses] = True
            out.weights[r, losses] = stream.weights
            out.behaviour[r, losses] = stream.behaviour
            if support:
                out.support[r, losses] = stream.support
            start, place = tokens.stop, losses.stop
    return out


def pack(
    streams: Sequence[Stream],
    row_tokens: int,
    rows_per_microbatch: int,
    shards: int = 1,
    work: Work = TOKENS_ALONE,
    support: int = 0,
) -> list[Microbatch]:
    """:func:`plan` and :func:`build` in one: the microbatches of an update in a process that has all of it."""
    lengths, sampled = ([len(x) for x in column] for column in ([s.ids for s in streams], [s.sampled for s in streams]))
    layouts = plan(lengths, sampled, row_tokens, rows_per_microbatch, shards, work)
    return [build(layout, streams, support=support) for layout in layouts]


def one_shape(streams: Sequence[Stream], tokens: int, rows: int) -> Microbatch:
    """All ``streams`` in one microbatch of exactly ``rows`` rows of ``tokens`` tokens, each with room for a loss at
    every one of them: for what is always of one shape, such as a probe. ``rows`` as many as streams are enough."""
    members = fill([len(stream.ids) for stream in streams], (tokens,), rows)[tokens]
    if len(members) != rows:
        raise ValueError(f"{len(streams)} streams take {len(members)} rows of {tokens} tokens, not {rows}")
    return build(Layout(tokens, tokens, tuple(members)), streams)
