"""``report.json``: the same figures of the base and of the trained policy, and what changed.

Invariant: everything that a table, a plot or a page shows is in the report; the report is a pure function
of two complete campaigns over the same tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rollout_engine.evaluation.attempts import AttemptRow, PolicyStamp
from rollout_engine.evaluation.comparison import Comparison, compare
from rollout_engine.evaluation.cost import Cost, campaign_cost
from rollout_engine.evaluation.metrics import Summary, TaskOutcome, grouped, outcomes, summarize
from rollout_engine.evaluation.model_usage import ModelUsage, total

Report = dict[str, Any]


class ScopeFigures(msgspec.Struct, frozen=True):
    """Figures of a family or of a domain."""

    tasks: int
    pass_at_1: float
    pass_at_k: float
    observed_all: int
    tokens_per_success: float | None


def campaign_figures(rows: Sequence[AttemptRow], token_price: float) -> Report:
    """Figures of one complete campaign, as plain data. Shares are in [0, 1].

    The fields are those of :class:`Summary` and :class:`Cost`, ``policy``, ``rankings`` (whose the knowledge searches'
    were), ``models`` with a :class:`ModelUsage` a role, ``domains`` and ``families`` with :class:`ScopeFigures` each.
    """
    tasks = outcomes(rows)
    return {
        **_plain(summarize(tasks)),
        **_plain(campaign_cost(tasks, token_price)),
        "policy": _plain(rows[0].policy),
        "rankings": sorted({row.ranking for row in rows} - {""}),
        "models": {role: _plain(used) for role, used in total(row.models for row in rows).items()},
        "domains": _scopes(tasks, lambda outcome: outcome.domain),
        "families": _scopes(tasks, lambda outcome: outcome.scope),
    }


def build_report(
    run: str,
    base: Sequence[AttemptRow],
    trained: Sequence[AttemptRow],
    seconds: Mapping[str, float],
    token_price: float,
) -> Report:
    """The whole report. Raises :class:`ConfigurationError` unless both campaigns are over the same tasks."""
    change = compare(outcomes(base), outcomes(trained))
    before = campaign_figures(base, token_price)
    after = campaign_figures(trained, token_price)
    old, new = before.pop("families"), after.pop("families")
    plain_change = _plain(change)
    fallen = plain_change.pop("families_fallen")
    return {
        "run": run,
        "base": before,
        "trained": after,
        "change": plain_change,
        "families": {family: {"base": old[family], "trained": new[family]} for family in old},
        "families_fallen": fallen,
        "seconds": dict(seconds),
    }


def write_report(report: Report, path: Path) -> None:
    """Write ``report.json``, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    partial.replace(path)


def _scopes(tasks: Sequence[TaskOutcome], key) -> dict[str, Any]:
    return {scope: _plain(_scope(group)) for scope, group in grouped(tasks, key).items()}


def _scope(tasks: Sequence[TaskOutcome]) -> ScopeFigures:
    summary = summarize(tasks)
    cost = campaign_cost(tasks, 0.0)
    return ScopeFigures(
        summary.tasks, summary.pass_at_1, summary.pass_at_k, summary.observed_all, cost.tokens_per_success
    )


def _plain(record: Summary | Cost | Comparison | PolicyStamp | ScopeFigures | ModelUsage) -> dict[str, Any]:
    return msgspec.to_builtins(record, str_keys=True)
