from __future__ import annotations

from itertools import combinations
from statistics import mean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_engine.evaluation.metrics import (
    bootstrap_interval,
    curve_points,
    outcomes,
    pass_at_k,
    pass_hat_k,
    summarize,
    wilson_interval,
)
from tests.rollout_engine.evaluation.samples import campaign, row

A, B, C = "travel/refund/heldout/0", "travel/reship/heldout/0", "retail/refund/heldout/0"


@given(st.integers(1, 8), st.data())
def test_estimators_are_the_mean_over_all_choices_of_attempts(n, data):
    passes = data.draw(st.integers(0, n))
    k = data.draw(st.integers(1, n))
    choices = list(combinations([True] * passes + [False] * (n - passes), k))
    assert pass_at_k(n, passes, k) == pytest.approx(mean(any(choice) for choice in choices))
    assert pass_hat_k(n, passes, k) == pytest.approx(mean(all(choice) for choice in choices))


def test_figures_of_a_small_campaign():
    summary = summarize(outcomes(campaign({A: 4, B: 1, C: 0}, 4)))
    assert (summary.tasks, summary.attempts, summary.attempts_per_task, summary.passes) == (3, 12, 4, 5)
    assert summary.pass_at_1 == pytest.approx(5 / 12)
    assert summary.pass_at_k == pytest.approx(2 / 3)
    assert (summary.observed_all, summary.observed_all_share) == (1, pytest.approx(1 / 3))
    assert summary.pass_at == pytest.approx({1: 5 / 12, 2: (1 + 0.5) / 3, 4: 2 / 3})
    assert summary.pass_hat == pytest.approx({1: 5 / 12, 2: 1 / 3, 4: 1 / 3})


def test_a_task_is_the_sum_of_its_rows_and_errors_do_not_count():
    rows = [row(A, 0, 1.0), row(A, 1, 0.0, sampled=1, prompt=2), row(A, 2, error="actor")]
    [outcome] = outcomes(rows)
    assert (outcome.attempts, outcome.passes, outcome.tokens) == (2, 1, 103)
    assert (outcome.scope, outcome.rate, outcome.reliable) == ("travel/refund", 0.5, False)


def test_the_interval_is_over_tasks_not_over_attempts():
    # 32 tasks that always pass and 32 that never do: 1024 attempts, but 64 independent draws.
    rates = np.repeat([0.0, 1.0], 32)
    low, high = bootstrap_interval(rates)
    clustered = 1.96 * 0.5 / 64**0.5
    assert high - low == pytest.approx(2 * clustered, rel=0.08)
    assert bootstrap_interval(rates) == (low, high)


def test_wilson_has_a_width_at_the_edges():
    assert wilson_interval(0, 64) == pytest.approx((0.0, 0.0566), abs=1e-4)
    assert wilson_interval(64, 64) == pytest.approx((0.9434, 1.0), abs=1e-4)
    assert wilson_interval(10, 50) == pytest.approx((0.1124, 0.3304), abs=1e-4)


def test_unequal_attempts_have_no_common_k():
    with pytest.raises(ValueError, match=r"\[1, 2\]"):
        summarize(outcomes([row(A, 0), row(B, 0), row(B, 1)]))
    with pytest.raises(ValueError, match="one number of attempts"):
        summarize([])


@pytest.mark.parametrize(("n", "points"), [(1, [1]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8]), (20, [1, 2, 4, 8, 16, 20])])
def test_curve_points(n, points):
    assert curve_points(n) == points
