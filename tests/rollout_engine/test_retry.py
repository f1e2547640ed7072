"""Budgets by kind."""

import pytest

from protocol.config import Retries, Retry
from rollout_engine import errors
from rollout_engine.errors import ActorError, EpisodeSystemError, EpisodeTimeout, UserError
from rollout_engine.retry import RetryBudget


def kinds(error=EpisodeSystemError):
    return {error.kind}.union(*(kinds(child) for child in error.__subclasses__()))


def test_every_kind_of_system_error_can_be_configured():
    for kind in kinds(errors.EpisodeSystemError) - {"unknown"}:
        assert hasattr(Retries(), kind.replace("-", "_")), kind


def test_a_kind_without_retries_of_its_own_goes_by_the_default():
    budget = RetryBudget(Retries(Retry(times=2, backoff=3.0), episode_timeout=Retry(times=0)))
    assert budget.after(EpisodeTimeout("slow")) is None
    assert [budget.after(UserError("down")) for _ in range(3)] == [3.0, 6.0, None]
    assert budget.after(ActorError("down")) == 3.0, "another kind's budget is whole"


def test_an_outage_spends_nothing_and_a_longer_pause_that_was_asked_for_is_kept():
    budget = RetryBudget(Retries(Retry(times=1, backoff=1.0)))
    assert [budget.after(UserError("down"), excused=True) for _ in range(50)] == [1.0] * 50
    asked = UserError("answered 429")
    asked.retry_after = 20.0
    assert budget.after(asked) == 20.0
    assert budget.after(asked) is None


@pytest.mark.parametrize("asked", [86400.0, float("inf")])
def test_a_pause_that_was_asked_for_is_bounded(asked):
    budget, error = RetryBudget(Retries(max_retry_after=60.0)), UserError("answered 429")
    error.retry_after = asked
    assert budget.after(error) == 60.0


def test_backoff_is_bounded_however_often_a_sample_runs_again():
    budget = RetryBudget(Retries(Retry(times=5000, backoff=0.5, max_backoff=30.0)))
    waits = [budget.after(ActorError("down")) for _ in range(5000)]
    assert waits[:8] == [0.5, 1, 2, 4, 8, 16, 30, 30] and set(waits[8:]) == {30.0}
