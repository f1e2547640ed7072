"""``curation`` and ``sampling``: which tasks are trained on, and how often."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from protocol.config.section import Fraction, Positive, Section


class Curation(Section):
    attempts: Positive = 8
    """Probe attempts a candidate task."""
    keep: tuple[str, ...] = ("difficult", "intermediate", "frequently_solved")
    min_clean: Positive = 4


class TaskSampling(Section):
    """Which tasks a step draws."""

    mode: Literal["fixed", "adaptive"] = "fixed"
    """fixed: the pool is visited evenly, as in the published run. adaptive: tasks are drawn by the chance that their
    group comes out mixed."""
    forgetting: Annotated[float, Meta(ge=0, lt=1)] = 0.05
    """Share of its weight that evidence on a task's pass rate loses with every step: the policy changes."""
    exploration: Fraction = 0.25
    """Adaptive only: share of a step's groups that go on visiting the pool evenly, so that no task starves."""
