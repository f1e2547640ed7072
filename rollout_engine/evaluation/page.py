"""The report as one HTML page that needs nothing beside itself.

Invariant: the page is a pure function of its inputs and holds every picture inline; a part whose data
isn't there says so instead of vanishing.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from protocol.records import Batch
from rollout_engine.curation.pool import Pool
from rollout_engine.evaluation import plots, tables
from rollout_engine.evaluation.training import curves, ledger_rows
from rollout_engine.evaluation.transcripts import Transcript


@dataclass(frozen=True)
class PageInputs:
    """What a page is made of; all but the report may be empty."""

    report: Mapping[str, Any]
    """As :func:`rollout_engine.evaluation.report.build_report` makes it."""
    fingerprint: str = ""
    """Of the run's configuration."""
    pool: Pool | None = None
    metrics: Sequence[Mapping[str, Any]] = ()
    """The learner's metrics rows."""
    batches: Sequence[Batch] = ()
    failures: Sequence[Transcript] = field(default=())
    """Failing attempts of the trained policy to show."""


def render_page(inputs: PageInputs) -> str:
    """The page as HTML."""
    report = inputs.report
    found = curves(inputs.metrics)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": tables.percent, "points": tables.points, "count": tables.count, "json": _json}
    return environment.get_template("report.html.jinja").render(
        report=report,
        fingerprint=inputs.fingerprint,
        k=report["base"]["attempts_per_task"],
        headline=tables.headline_rows(report),
        tiles=_tiles(report),
        families=tables.sorted_families(report)[::-1],
        fallen={fall["family"]: fall for fall in report["families_fallen"]},
        pool=inputs.pool,
        ledger=ledger_rows(inputs.batches),
        failures=inputs.failures,
        pictures={
            "headline": _picture(plots.headline_bars(report), "pass@1, pass@k and observed k/k, before and after"),
            "reliability": _picture(plots.reliability_curves(report), "pass@k and pass^k by number of attempts"),
            "families": _picture(plots.family_dumbbells(report), "pass@1 of each family, before and after"),
            "cost": _picture(plots.cost_scatter(report), "tokens per success against pass@1"),
            "stages": _picture(plots.stage_bars(report["seconds"]), "seconds by stage") if report["seconds"] else "",
            "curves": _picture(plots.training_curves(found), "training curves over steps") if found else "",
            "bands": _picture(plots.band_histogram(inputs.pool.histogram, inputs.pool.keep), "candidates by band")
            if inputs.pool
            else "",
        },
    )


def _tiles(report: Mapping[str, Any]) -> list[dict[str, str]]:
    """The four figures on top of the page: name, before, after, change, whether it got better."""
    rows = {name: (before, after, change) for name, before, after, change in tables.headline_rows(report)}
    base, trained = report["base"], report["trained"]
    k = base["attempts_per_task"]
    better = {
        f"observed {k}/{k}": _direction(base["observed_all"], trained["observed_all"]),
        "pass@1": _direction(base["pass_at_1"], trained["pass_at_1"]),
        f"pass@{k}": _direction(base["pass_at_k"], trained["pass_at_k"]),
        "tokens per reliable task": _direction(trained["tokens_per_reliable_task"], base["tokens_per_reliable_task"]),
    }
    plain = {f"observed {k}/{k}": (str(base["observed_all"]), str(trained["observed_all"]))}
    tiles = []
    for name, direction in better.items():
        before, after, change = rows[name]
        before, after = plain.get(name, (before, after))
        tiles.append({"name": name, "before": before, "after": after, "change": change, "direction": direction})
    return tiles


def _direction(low: float | None, high: float | None) -> str:
    if low is None or high is None or low == high:
        return "same"
    return "better" if high > low else "worse"


def _picture(svg: str, text: str) -> Markup:
    # As an image, so that the ids inside one picture can't collide with another's.
    data = base64.b64encode(svg.encode()).decode()
    return Markup('<img alt="{}" src="data:image/svg+xml;base64,{}">').format(text, data)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
