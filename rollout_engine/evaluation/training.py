"""Training as the page shows it: curves over steps, and where every episode went.

Invariant: plain functions of the learner's metrics rows and of the logged batches; a curve without data
is left out rather than drawn flat.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from protocol.records import Batch
from rollout_engine.errors import ConfigurationError

Points = list[tuple[int, float]]

_CURVES: dict[str, Callable[[Mapping[str, Any]], float]] = {
    "Reward (pass rate)": lambda row: row["reward_mean"],
    "Zero-variance groups (share)": lambda row: 1 - row["informative_groups"] / row["groups"],
    "Entropy (nats a token)": lambda row: row["entropy"],
    "Sampled tokens an episode": lambda row: row["sampled_mean"],
    "Gradient norm": lambda row: row["grad_norm"],
    "|learner − actor| (nats a token)": lambda row: row["behaviour_difference"],
}
"""Curve of each title, from one row of the learner's metrics."""


class LedgerRow(msgspec.Struct, frozen=True):
    """One step of the ledger table."""

    step: int
    outcome: str
    bound: str
    """What cut a short batch short."""
    waves: int
    started: int
    carried: int
    trained: int
    zero_variance: int
    surplus: int
    cancelled: int
    system_errors: int
    pass_rate: float
    """Mean reward of every complete group, those without variance included."""
    seconds: float


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Rows of the learner's metrics file, a JSON object a line; none when there is no file.

    A last line without its newline is dropped. Raises :class:`ConfigurationError` naming file and line.
    """
    if not path.exists():
        return []
    *lines, _unfinished = path.read_bytes().split(b"\n")
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(msgspec.json.decode(line, type=dict))
        except msgspec.MsgspecError as error:
            raise ConfigurationError(f"{path}, line {number} is not a metrics row: {error}") from error
    return rows


def ledger_rows(batches: Sequence[Batch]) -> list[LedgerRow]:
    """The ledger by step, in order; raises ``ValueError`` for a ledger that doesn't sum."""
    rows = []
    for batch in sorted(batches, key=lambda batch: batch.step):
        ledger = batch.ledger
        ledger.check()
        rewards = [reward for group in batch.groups for reward in group.rewards]
        rows.append(
            LedgerRow(
                batch.step,
                batch.outcome,
                batch.bound,
                batch.waves,
                ledger.started,
                ledger.carried,
                ledger.trained,
                ledger.zero_variance,
                ledger.surplus,
                ledger.cancelled,
                sum(ledger.system_error.values()),
                sum(rewards) / len(rewards) if rewards else 0.0,
                batch.seconds,
            )
        )
    return rows


def curves(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Points]:
    """Curves over steps by title; a step without a figure (no update, no groups) is a gap."""
    ordered = sorted((row for row in metrics if "step" in row), key=lambda row: row["step"])
    found = {title: _points(ordered, figure) for title, figure in _CURVES.items()}
    return {title: points for title, points in found.items() if points}


def _points(rows: Sequence[Mapping[str, Any]], figure: Callable[[Mapping[str, Any]], float]) -> Points:
    points = []
    for row in rows:
        with suppress(KeyError, ZeroDivisionError):
            points.append((int(row["step"]), float(figure(row))))
    return points
