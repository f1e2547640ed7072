"""The report's figures in a terminal, and how every figure is written.

Invariant: shares are shown in percent, their changes in points, counts and tokens as factors or percent;
a figure that doesn't exist is a dash, never a zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

DASH = "–"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def points(change: float) -> str:
    return _minus(f"{100 * change:+.1f} points")


def count(value: float | None) -> str:
    """Whole number with thin spaces between thousands."""
    return DASH if value is None else f"{value:,.0f}".replace(",", "\u202f")


def factor(before: int, after: int) -> str:
    """``after`` over ``before``: ×2.82, or +8 tasks when there were none before."""
    return f"×{after / before:.2f}" if before else f"{after:+d} tasks"


def relative(before: float | None, after: float | None) -> str:
    """Change in percent: −43 %."""
    return _minus(f"{100 * (after / before - 1):+.0f} %") if before and after is not None else DASH


def headline_rows(report: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """(figure, before, after, change) of the published headline."""
    base, trained = report["base"], report["trained"]
    k = base["attempts_per_task"]

    def share(name: str) -> tuple[str, str, str]:
        return percent(base[name]), percent(trained[name]), points(trained[name] - base[name])

    def tokens(name: str) -> tuple[str, str, str]:
        return count(base[name]), count(trained[name]), relative(base[name], trained[name])

    observed = (_observed(base), _observed(trained), factor(base["observed_all"], trained["observed_all"]))
    return [
        ("pass@1", *share("pass_at_1")),
        (f"pass@{k}", *share("pass_at_k")),
        (f"observed {k}/{k}", *observed),
        ("tokens per success", *tokens("tokens_per_success")),
        ("tokens per reliable task", *tokens("tokens_per_reliable_task")),
    ]


def headline_table(report: Mapping[str, Any]) -> Table:
    base, trained = report["base"], report["trained"]
    title = f"{report['run']}: {base['tasks']} held-out tasks × {base['attempts_per_task']} attempts"
    table = Table(title=title, title_style="bold", title_justify="left")
    table.add_column("")
    for policy in (base, trained):
        table.add_column(policy["policy"]["label"], justify="right")
    table.add_column("change", justify="right")
    for row in headline_rows(report):
        table.add_row(*row)
    told = dict.fromkeys([*rankings_lines(base), *rankings_lines(trained)])
    table.caption = "; ".join(told) or None
    return table


def family_table(report: Mapping[str, Any]) -> Table:
    """pass@1 and observed k/k by family, deepest fall first, those that fell marked."""
    k = report["base"]["attempts_per_task"]
    halved = {fall["family"] for fall in report["families_fallen"] if fall["under_half"]}
    table = Table(title="By family", title_style="bold", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("family", no_wrap=True)
    for column in ("tasks", "pass@1, %", "points", f"{k}/{k}"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for family, old, new in sorted_families(report):
        change = new["pass_at_1"] - old["pass_at_1"]
        mark = Text("fell under half", "bold red") if family in halved else Text("fell", "red") if change < 0 else ""
        table.add_row(
            Text(family),
            str(old["tasks"]),
            f"{100 * old['pass_at_1']:.1f} → {100 * new['pass_at_1']:5.1f}",
            _minus(f"{100 * change:+.1f}"),
            f"{old['observed_all']} → {new['observed_all']}",
            mark,
        )
    return table


def sorted_families(report: Mapping[str, Any]) -> list[tuple[str, dict, dict]]:
    """(family, base figures, trained figures), the deepest fall of pass@1 first."""
    families = [(family, both["base"], both["trained"]) for family, both in report["families"].items()]
    return sorted(families, key=lambda item: (item[2]["pass_at_1"] - item[1]["pass_at_1"], item[0]))


def campaign_table(figures: Mapping[str, Any]) -> Table:
    """One campaign alone: the headline with its intervals, over all and by domain."""
    k = figures["attempts_per_task"]
    label = figures["policy"]["label"]
    table = Table(title=f"{label}: {figures['tasks']} tasks × {k} attempts", title_style="bold", title_justify="left")
    table.add_column("")
    for column in ("tasks", "pass@1", f"pass@{k}", f"observed {k}/{k}", "tokens per success"):
        table.add_column(column, justify="right")
    low, high = figures["intervals"]["pass_at_1"]
    rate = f"{percent(figures['pass_at_1'])} ({100 * low:.1f}–{100 * high:.1f})"
    table.add_row("all", *_campaign_cells(figures, rate), end_section=True)
    for domain, scope in figures["domains"].items():
        table.add_row(domain, *_campaign_cells(scope, percent(scope["pass_at_1"])))
    told = [models_line(role, used) for role, used in figures["models"].items()]
    table.caption = "; ".join([*told, *rankings_lines(figures)]) or None
    table.caption_justify = "left"
    return table


def rankings_lines(figures: Mapping[str, Any]) -> list[str]:
    """What to know of the knowledge search that the agent used."""
    return [f"ranking of the knowledge search: {ranking}" for ranking in figures["rankings"]]


def models_line(role: str, used: Mapping[str, Any]) -> str:
    """What a model beside the policy used: "judge: 12 calls, 3 456 tokens, cost 0.0123"."""
    tokens = used["prompt_tokens"] + used["completion_tokens"]
    return f"{role}: {count(used['calls'])} calls, {count(tokens)} tokens, cost {used['cost']:.3g}"


def histogram_table(histogram: Mapping[str, int], kept: Mapping[str, int], keep: tuple[str, ...]) -> Table:
    """Candidates by band as bars; ``kept``: tasks that made the pool, by band."""
    table = Table(title="Candidates by difficulty", title_style="bold", title_justify="left", box=None)
    table.add_column("band")
    table.add_column("tasks", justify="right")
    table.add_column("")
    table.add_column("in the pool", justify="right")
    widest = max([1, *histogram.values()])
    for band, tasks in histogram.items():
        style = "green" if band in keep else "dim"
        bar = Text("█" * round(40 * tasks / widest), style)
        table.add_row(Text(band.replace("_", " "), style), str(tasks), bar, str(kept.get(band, 0)))
    return table


def _campaign_cells(scope: Mapping[str, Any], rate: str) -> list[str]:
    return [
        str(scope["tasks"]),
        rate,
        percent(scope["pass_at_k"]),
        str(scope["observed_all"]),
        count(scope["tokens_per_success"]),
    ]


def _observed(figures: Mapping[str, Any]) -> str:
    return f"{figures['observed_all']} ({percent(figures['observed_all_share'])})"


def _minus(text: str) -> str:
    """A hyphen set as the minus sign that it means."""
    return text.replace("-", "−")
