"""The report's figures as SVG text: data in, picture out, no files and no global state.

Invariant: one colour means one thing on the whole page: grey is before, teal after, orange a fall.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from rollout_engine.evaluation.tables import count, percent, sorted_families

BEFORE, AFTER, FALL = "#8a97a8", "#0f766e", "#c2410c"
_INK, _SOFT, _GRID = "#1f2937", "#6b7280", "#e5e7eb"
_FULL, _HALF = 10.0, 4.9
"""Widths in inches that make 11 pt text the page's text size."""
_STYLE = {
    "font.size": 11,
    "font.family": "DejaVu Sans",
    "text.color": _INK,
    "axes.labelcolor": _SOFT,
    "axes.edgecolor": "#cbd5e1",
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": _SOFT,
    "ytick.color": _SOFT,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "grid.color": _GRID,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "svg.fonttype": "path",
    "svg.hashsalt": "endstate",
}


def headline_bars(report: Mapping[str, Any]) -> str:
    """pass@1, pass@k and observed k/k before and after, with 95 % intervals over tasks."""
    k = report["base"]["attempts_per_task"]
    names = {"pass_at_1": "pass@1", "pass_at_k": f"pass@{k}", "observed_all_share": f"observed {k}/{k}"}
    with mpl.rc_context(_STYLE):
        figure, axes = _figure(_HALF, 3.5)
        for side, (colour, figures) in enumerate(((BEFORE, report["base"]), (AFTER, report["trained"]))):
            for place, name in enumerate(names):
                x, value = place + (side - 0.5) * 0.38, figures[name]
                low, high = figures["intervals"][name]
                label = figures["policy"]["label"] if place == 0 else None
                axes.bar(x, value, 0.34, color=colour, label=label)
                axes.errorbar(x, value, [[max(0, value - low)], [max(0, high - value)]], color=_INK, lw=1, capsize=2.5)
                axes.annotate(
                    f"{100 * value:.0f}", (x, high), (0, 4), textcoords="offset points", ha="center", fontsize=11
                )
        axes.set_xticks(range(len(names)), names.values(), fontsize=11, color=_INK)
        axes.tick_params(axis="x", length=0)
        _share_axis(axes, top=1.12)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
        return _svg(figure)


def reliability_curves(report: Mapping[str, Any]) -> str:
    """Solved at least once (pass@k) and every time (pass^k) in k attempts."""
    with mpl.rc_context(_STYLE):
        figure, axes = _figure(_HALF, 3.5)
        for colour, figures in ((BEFORE, report["base"]), (AFTER, report["trained"])):
            label = figures["policy"]["label"]
            for name, style, what in (("pass_at", "--", "at least once"), ("pass_hat", "-", "every time")):
                ks = [int(k) for k in figures[name]]
                values = list(figures[name].values())
                axes.plot(ks, values, style, color=colour, lw=2, marker="o", ms=3.5, label=f"{label}, {what}")
        axes.set_xscale("log", base=2)
        axes.set_xticks(ks, [str(k) for k in ks])
        axes.set_xlabel("attempts k")
        _share_axis(axes, top=1.04)
        axes.legend(loc="lower center", bbox_to_anchor=(0.45, 1.0), ncols=2, handlelength=2.6, columnspacing=1.2)
        return _svg(figure)


def family_dumbbells(report: Mapping[str, Any]) -> str:
    """pass@1 of each family, from before to after; the largest gain on top."""
    families = sorted_families(report)
    with mpl.rc_context(_STYLE):
        figure, axes = _figure(_FULL, 0.9 + 0.34 * len(families))
        for y, (_, old, new) in enumerate(families):
            before, after = old["pass_at_1"], new["pass_at_1"]
            colour = FALL if after < before else AFTER
            axes.plot([before, after], [y, y], color=colour, lw=3, alpha=0.35, solid_capstyle="round")
            axes.plot(before, y, "o", ms=8, color=BEFORE)
            axes.plot(after, y, "o", ms=8, color=colour)
            axes.annotate(
                f"{100 * (after - before):+.0f}".replace("-", "−"),
                (1.03, y),
                va="center",
                color=colour,
                fontweight="bold",
                annotation_clip=False,
            )
        axes.set_yticks(range(len(families)), [name for name, *_ in families], color=_INK)
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(-0.6, len(families) - 0.4)
        axes.set_xlim(-0.03, 1.02)
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.grid(axis="x")
        axes.spines["left"].set_visible(False)
        for colour, name in ((BEFORE, "before"), (AFTER, "after, higher"), (FALL, "after, lower")):
            axes.plot([], [], "o", ms=8, color=colour, label=name)
        axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=3, handletextpad=0.1)
        return _svg(figure)


def training_curves(curves: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    """Small multiples over steps: title -> points (step, value)."""
    with mpl.rc_context(_STYLE):
        columns = min(len(curves), 3)
        rows = -(-len(curves) // columns)
        figure = Figure((_FULL, 2.5 * rows), layout="constrained")
        figure.get_layout_engine().set(h_pad=0.12, w_pad=0.12)
        grid = figure.subplots(rows, columns, squeeze=False).flatten()
        for axes, (title, points) in zip(grid, curves.items(), strict=False):
            steps, values = [step for step, _ in points], [value for _, value in points]
            axes.plot(steps, values, color=AFTER, lw=1.8, marker="o" if len(steps) <= 60 else None, ms=3)
            axes.set_title(title, fontsize=11)
            axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
            axes.yaxis.set_major_locator(MaxNLocator(4))
            axes.grid(axis="y")
        for axes in grid[len(curves) :]:
            axes.set_visible(False)
        return _svg(figure)


def band_histogram(histogram: Mapping[str, int], keep: Sequence[str]) -> str:
    """Candidates by band of difficulty, hardest on top; bands that train are coloured."""
    with mpl.rc_context(_STYLE):
        figure, axes = _figure(_HALF, 3.0)
        names = list(histogram)
        bars = axes.barh(
            range(len(names)),
            list(histogram.values()),
            0.66,
            color=[AFTER if name in keep else "#cbd5e1" for name in names],
        )
        axes.bar_label(bars, padding=4, color=_INK)
        axes.set_yticks(range(len(names)), [name.replace("_", " ") for name in names], color=_INK)
        axes.invert_yaxis()
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(0, 1.15 * max([1, *histogram.values()]))
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.set_xlabel("candidate tasks")
        axes.grid(axis="x")
        return _svg(figure)


def cost_scatter(report: Mapping[str, Any]) -> str:
    """Tokens per success against pass@1, over all and by domain: up and to the left is better."""
    with mpl.rc_context(_STYLE):
        figure, axes = _figure(_HALF, 3.5)
        base, trained = report["base"], report["trained"]
        pairs = [(None, base, trained)]
        pairs += [(domain, base["domains"][domain], trained["domains"][domain]) for domain in base["domains"]]
        for domain, *both in pairs:
            places = [(figures["tokens_per_success"], figures["pass_at_1"]) for figures in both]
            size, alpha = (10, 1.0) if domain is None else (6, 0.55)
            if all(x is not None for x, _ in places):
                arrow = {"arrowstyle": "->", "color": _SOFT, "alpha": alpha, "shrinkA": 6, "shrinkB": 6}
                axes.annotate("", places[1], places[0], arrowprops=arrow)
            for (x, y), colour, figures in zip(places, (BEFORE, AFTER), both, strict=True):
                if x is not None:
                    axes.plot(x, y, "o", ms=size, color=colour, alpha=alpha)
                    name = figures["policy"]["label"] if domain is None else domain
                    axes.annotate(
                        name,
                        (x, y),
                        (8, -3),
                        textcoords="offset points",
                        fontsize=11 if domain is None else 9,
                        color=_INK if domain is None else _SOFT,
                        fontweight="bold" if domain is None else "normal",
                    )
        axes.set_xlabel("tokens per success")
        axes.set_ylabel("pass@1")
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.xaxis.set_major_formatter(lambda value, _: count(value))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.margins(x=0.22, y=0.15)
        axes.grid()
        return _svg(figure)


def stage_bars(seconds: Mapping[str, float]) -> str:
    """Wall time of the main job's stages, in order."""
    total = sum(seconds.values())
    with mpl.rc_context(_STYLE):
        figure, axes = _figure(_HALF, 0.8 + 0.36 * len(seconds))
        bars = axes.barh(range(len(seconds)), list(seconds.values()), 0.66, color=BEFORE)
        labels = [f"{_duration(value)}  {percent(value / total)}" for value in seconds.values()]
        axes.bar_label(bars, labels, padding=4, color=_INK, fontsize=10)
        axes.set_yticks(range(len(seconds)), list(seconds), color=_INK)
        axes.invert_yaxis()
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(0, 1.5 * max(seconds.values()))
        axes.xaxis.set_visible(False)
        axes.spines["bottom"].set_visible(False)
        return _svg(figure)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure((width, height), layout="constrained")
    return figure, figure.subplots()


def _share_axis(axes: Axes, top: float) -> None:
    axes.set_ylim(0, top)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1.0])
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.grid(axis="y")


def _svg(figure: Figure) -> str:
    """The figure as an SVG document; the same data gives the same bytes."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return buffer.getvalue()
