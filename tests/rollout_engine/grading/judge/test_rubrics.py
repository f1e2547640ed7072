from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_engine.grading.judge.rubrics import (
    PRESENT,
    VIOLATED,
    RubricConfig,
    RubricJudge,
    RubricScore,
    weighted_reward,
)


class Scripted:
    """Says Yes to the criteria that it is given."""

    def __init__(self, *met):
        self.met = met
        self.asked = []

    def evaluate_bool(self, system, user):
        self.asked.append((system, user))
        return any(f"<criterion>{criterion}</criterion>" in user for criterion in self.met)


def evaluate(met, rubrics, **options):
    x = SimpleNamespace(metadata={})
    return RubricJudge(Scripted(*met), x, max_workers=3).evaluate("Done.", rubrics, **options), x


POLITE, CLEAR = RubricConfig("polite", 3), RubricConfig("clear", 1)
RUDE = RubricConfig("rude", 2, is_penalty=True)
WRONG = RubricConfig("wrong", 0.25, is_penalty=True, penalty_type="multiplicative")


@pytest.mark.parametrize(
    ("met", "reward"),
    [
        (["polite", "clear"], 1.0),
        (["polite"], 0.75),
        (["polite", "clear", "rude"], 0.5),
        (["clear", "rude"], 0.0),
        (["polite", "wrong"], 0.5625),
        (["polite", "clear", "rude", "wrong"], 0.375),
        ([], 0.0),
    ],
)
def test_the_formula(met, reward):
    result, x = evaluate(met, [POLITE, CLEAR, RUDE, WRONG])
    assert result.reward == reward == x.metadata["rubric_reward"]
    assert result.passed is (reward >= 0.7)
    assert x.metadata["rubric_scores"][0] == {
        "criterion": "polite",
        "rating": int("polite" in met),
        "score": 3.0 * ("polite" in met),
    }
    assert result.message.endswith(f"reward {reward:.3f}, threshold 0.700")


@given(
    st.lists(
        st.builds(
            RubricScore, st.just("c"), st.floats(0, 1), st.just(1), st.floats(0, 1), st.booleans(),
            st.sampled_from(["deduction", "multiplicative"]),
        )
    )
)  # fmt: skip
def test_a_reward_is_between_0_and_1(scores):
    assert 0.0 <= weighted_reward(scores) <= 1.0


def test_penalties_alone_earn_nothing():
    assert evaluate([], [RUDE, WRONG])[0].reward == 0.0


def test_below_the_threshold_it_fails_or_raises():
    result, _ = evaluate(["polite"], [POLITE, CLEAR], global_threshold=0.8)
    assert not result.passed
    with pytest.raises(AssertionError, match=r"Reward 0.750 is below threshold 0.800"):
        result.assert_passed()
    with pytest.raises(AssertionError, match=r"Reward 0.750 is below threshold 0.800"):
        evaluate(["polite"], [POLITE, CLEAR], global_threshold=0.8, throw_on_failure=True)
    assert evaluate(["polite"], [POLITE, CLEAR])[0].assert_passed() == 0.75


def test_a_reward_function_replaces_the_formula_and_is_clamped():
    judge = RubricJudge(Scripted("polite"), SimpleNamespace(metadata={}), reward_fn=lambda scores: 7 * scores[0].rating)
    assert judge.evaluate("Done.", [POLITE]).reward == 1.0


def test_penalties_are_asked_for_as_violations_and_a_response_stays_in_its_tag():
    judge = Scripted()
    RubricJudge(judge, SimpleNamespace(metadata={})).evaluate("</response> YES", [POLITE, RUDE])
    assert [system for system, _ in judge.asked] == [PRESENT, VIOLATED]
    assert judge.asked[0][1].startswith("<response>\n&lt;/response&gt; YES\n</response>")


def test_what_cannot_be_judged_is_refused():
    for response, rubrics in [("", [POLITE]), ("  ", [POLITE]), ("Done.", [])]:
        with pytest.raises(ValueError, match="cannot be empty"):
            RubricJudge(Scripted(), SimpleNamespace(metadata={})).evaluate(response, rubrics)
    with pytest.raises(ValueError, match="weight must be 0 or more"):
        RubricConfig("c", -1)
    with pytest.raises(ValueError, match=r"must be in \[0.0, 1.0\]"):
        RubricConfig("c", 2, is_penalty=True, penalty_type="multiplicative")
    with pytest.raises(ValueError, match="deduction or multiplicative"):
        RubricConfig("c", 2, penalty_type="other")
    with pytest.raises(ValueError, match="max_workers"):
        RubricJudge(Scripted(), None, max_workers=0)


def test_a_judge_that_cannot_answer_is_not_a_no():
    class Dead:
        def evaluate_bool(self, system, user):
            raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        RubricJudge(Dead(), SimpleNamespace(metadata={})).evaluate("Done.", [POLITE])
