"""Training as the page shows it: curves over steps, and where every episode went.

Invariant: plain functions of the learner's metrics rows and of the logged batches; a curve without data
is left out rather than drawn flat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from protocol.records import Batch
from rollout_engine.errors import ConfigurationError

Points = list[tuple[int, float]]

_FROM_METRICS = {
    "entropy": "Entropy (nats a token)",
    "sampled_tokens_mean": "Sampled tokens an episode",
    "grad_norm": "Gradient norm",
    "behaviour_difference": "|learner − actor| log-probability",
}
"""Curves that the learner measures: field of a metrics row, title."""


class LedgerRow(msgspec.Struct, frozen=True):
    """One step of the ledger table."""

    step: int
    outcome: str
    started: int
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
                ledger.started,
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


def curves(metrics: Sequence[Mapping[str, Any]], batches: Sequence[Batch]) -> dict[str, Points]:
    """Curves over steps by title, those without points left out. A step logged twice counts as it was last."""
    ledger = ledger_rows(batches)
    by_step = {int(row["step"]): row for row in metrics if "step" in row}
    found: dict[str, Points] = {
        "Reward (pass rate of the rollouts)": [(row.step, row.pass_rate) for row in ledger],
        "Zero-variance groups (share)": [(batch.step, _zero_variance(batch)) for batch in _ordered(batches)],
    }
    for field, title in _FROM_METRICS.items():
        found[title] = [(step, float(row[field])) for step, row in sorted(by_step.items()) if field in row]
    return {title: points for title, points in found.items() if points}


def _ordered(batches: Sequence[Batch]) -> list[Batch]:
    return sorted((batch for batch in batches if batch.groups), key=lambda batch: batch.step)


def _zero_variance(batch: Batch) -> float:
    return sum(group.bucket == "zero_variance" for group in batch.groups) / len(batch.groups)
