"""Trajectories to packed rows: first-fit decreasing, deterministic.

Invariant (rule 19): a row holds whole segments, each with its own id from 1 and positions from 0; segment 0
is padding. Only where a sampled token is predicted does a log-probability exist, so those places are listed
by index, and the head is applied there and nowhere else. Which row a trajectory lands in changes nothing in
the loss or its gradient: every trajectory keeps its own advantage, and the denominator is the batch's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from protocol.config import ConfigError


class Stream(NamedTuple):
    """One token stream to learn from. ``ids`` int32 [T]; ``sampled`` int32 [S]: positions (> 0) of the tokens
    with a loss; ``weights``, ``behaviour`` float32 [S]: advantage (or loss weight) and log-probability of each."""

    ids: np.ndarray
    sampled: np.ndarray
    weights: np.ndarray
    behaviour: np.ndarray


class Microbatch(NamedTuple):
    """R packed rows of T tokens with up to S places of loss each; a pytree of fixed shapes.

    ``ids``, ``segments``, ``positions``  int32 [R, T].
    ``index``      int32 [R, S]: position whose hidden state predicts the target (its own position - 1).
    ``targets``    int32 [R, S]; ``valid`` bool [R, S]: False on padding of the list.
    ``weights``    float32 [R, S]: advantages; ``behaviour`` float32 [R, S]: log-probabilities when sampled.
    """

    ids: np.ndarray
    segments: np.ndarray
    positions: np.ndarray
    index: np.ndarray
    targets: np.ndarray
    valid: np.ndarray
    weights: np.ndarray
    behaviour: np.ndarray


def first_fit_decreasing(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Rows as lists of indices into ``lengths``: longest first, each into the first row with room.

    Ties keep their order, so the result is a function of the input alone. Raises :class:`ConfigError` when one
    is longer than ``capacity``.
    """
    rows: list[list[int]] = []
    room: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if lengths[i] > capacity:
            raise ConfigError(
                f"a trajectory of {lengths[i]} tokens does not fit a row of {capacity}: raise learner.row_tokens "
                f"to at least rollout.limits.episode_tokens, or lower the latter"
            )
        row = next((r for r, free in enumerate(room) if free >= lengths[i]), len(rows))
        if row == len(rows):
            rows.append([])
            room.append(capacity)
        rows[row].append(i)
        room[row] -= lengths[i]
    return rows


def pack(
    sequences: Sequence[Stream], row_tokens: int, rows_per_microbatch: int, places: int | None = None
) -> list[Microbatch]:
    """Microbatches of exactly ``rows_per_microbatch`` rows of ``row_tokens``, the last filled up with empty rows.

    The number S of places of loss in a row is ``places``, or else the same in all of them: the fullest row's,
    rounded up to an eighth of a row, so that few shapes are ever compiled.
    """
    rows = first_fit_decreasing([len(s.ids) for s in sequences], row_tokens)
    rows += [[] for _ in range(-len(rows) % rows_per_microbatch)]
    eighth = max(1, -(-row_tokens // 8))
    fullest = max((sum(len(sequences[i].sampled) for i in row) for row in rows), default=0)
    places = places or min(max(1, -(-fullest // eighth)) * eighth, row_tokens)

    count = len(rows)
    tokens = {name: np.zeros((count, row_tokens), np.int32) for name in ("ids", "segments", "positions")}
    lists = {name: np.zeros((count, places), np.int32) for name in ("index", "targets")}
    lists["valid"] = np.zeros((count, places), bool)
    lists |= {name: np.zeros((count, places), np.float32) for name in ("weights", "behaviour")}
    for r, row in enumerate(rows):
        start = place = 0
        for segment, i in enumerate(row, 1):
            sequence, end = sequences[i], start + len(sequences[i].ids)
            tokens["ids"][r, start:end] = sequence.ids
            tokens["segments"][r, start:end] = segment
            tokens["positions"][r, start:end] = np.arange(end - start)
            here = slice(place, place + len(sequence.sampled))
            lists["index"][r, here] = start + sequence.sampled - 1
            lists["targets"][r, here] = sequence.ids[sequence.sampled]
            lists["valid"][r, here] = True
            lists["weights"][r, here] = sequence.weights
            lists["behaviour"][r, here] = sequence.behaviour
            start, place = end, here.stop
    whole = Microbatch(**tokens, **lists)
    return [Microbatch(*(x[i : i + rows_per_microbatch] for x in whole)) for i in range(0, count, rows_per_microbatch)]


def efficiency(microbatches: Sequence[Microbatch]) -> float:
    """Real tokens over computed tokens."""
    return float(sum((m.segments > 0).sum() for m in microbatches) / sum(m.segments.size for m in microbatches))
