from __future__ import annotations

import pytest

from rollout_engine.errors import ConfigurationError
from rollout_engine.evaluation.comparison import compare
from rollout_engine.evaluation.cost import campaign_cost
from rollout_engine.evaluation.metrics import outcomes
from tests.rollout_engine.evaluation.samples import campaign

BEFORE = {"travel/a/heldout/0": 4, "travel/a/heldout/1": 2, "travel/b/heldout/0": 2, "retail/a/heldout/0": 0}
AFTER = {"travel/a/heldout/0": 4, "travel/a/heldout/1": 4, "travel/b/heldout/0": 0, "retail/a/heldout/0": 4}


def compared(before=BEFORE, after=AFTER, attempts=4):
    return compare(outcomes(campaign(before, attempts)), outcomes(campaign(after, attempts)))


def test_changes_are_paired_by_task():
    change = compared()
    assert change.pass_at_1_change == pytest.approx((0 + 0.5 - 0.5 + 1) / 4)
    low, high = change.pass_at_1_interval
    assert -0.5 <= low < 0.25 < high <= 1.0
    assert change.observed_all_factor == 3.0
    assert (change.observed_all_gained, change.observed_all_lost) == (2, 0)
    assert change.observed_all_p == pytest.approx(0.5)
    assert (change.solved_gained, change.solved_lost) == (1, 1)


def test_every_fallen_family_is_named_with_figures():
    # retail/a rose and must not hide travel's family of the same name.
    after = {**AFTER, "travel/a/heldout/0": 3, "travel/a/heldout/1": 2}
    deep, shallow = compared(after=after).families_fallen
    assert (deep.family, deep.tasks, deep.base, deep.trained, deep.change, deep.under_half) == (
        "travel/b", 1, 0.5, 0.0, -0.5, True,
    )  # fmt: skip
    assert (shallow.family, shallow.tasks, shallow.base, shallow.trained) == ("travel/a", 2, 0.75, 0.625)
    assert not shallow.under_half


def test_exactly_half_is_not_under_half():
    [fall] = compared({"travel/a/heldout/0": 4}, {"travel/a/heldout/0": 2}).families_fallen
    assert not fall.under_half


def test_without_a_reliable_task_there_is_no_factor():
    assert compared({"travel/a/heldout/0": 1}, {"travel/a/heldout/0": 4}).observed_all_factor is None


def test_other_tasks_are_refused():
    with pytest.raises(ConfigurationError, match="1 are in one only, the first travel/b/heldout/0"):
        compared(after={id: 0 for id in BEFORE if "/b/" not in id})


def test_every_token_is_paid_for():
    cost = campaign_cost(outcomes(campaign(BEFORE, 4)), token_price=2.0)
    assert cost.campaign_tokens == 1600
    assert cost.tokens_per_success == 200
    assert cost.tokens_per_reliable_task == 1600
    assert cost.campaign_cost == pytest.approx(0.0032)
    assert cost.cost_per_success == pytest.approx(0.0004)


def test_what_never_happened_has_no_price():
    cost = campaign_cost(outcomes(campaign({"travel/a/heldout/0": 0}, 4)), token_price=1.0)
    assert (cost.tokens_per_success, cost.tokens_per_reliable_task) == (None, None)
    assert (cost.cost_per_success, cost.cost_per_reliable_task) == (None, None)
