"""Okapi BM25, by hand and by its properties."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_engine.sessions.search.ranking import Text, bm25, words


def texts(*values):
    return [Text.of(value) for value in values]


def test_words_are_folded_and_lose_a_final_s():
    assert words("Refunds, REFUND; class gas Straße") == ["refund", "refund", "class", "gas", "strasse"]


def test_scores_by_hand():
    scores = bm25("refund", texts("refund policy", "shipping policy"))
    weight = math.log(1 + 1.5 / 1.5)
    assert scores == [pytest.approx(weight * 2.2 / (1 + 1.2)), 0.0]


def test_rarer_words_and_shorter_texts_count_more():
    rare, common, long = bm25("late refund", texts("late", "refund", "refund " + "and so on " * 20))
    assert rare > common > long > 0


def test_no_texts_and_no_words():
    assert bm25("refund", []) == [] and bm25("", texts("a", "b")) == [0, 0] and bm25("x", texts("", "")) == [0, 0]


def test_equal_texts_are_one_object_while_somebody_holds_them():
    text = Text.of("some long policy")
    assert Text.of("some long " + "policy") is text and Text.of("another") is not text


@given(st.text(), st.lists(st.text(), max_size=6), st.randoms())
def test_the_score_of_a_text_does_not_depend_on_the_order_of_texts(query, values, random):
    order = list(range(len(values)))
    random.shuffle(order)
    plain, shuffled = bm25(query, texts(*values)), bm25(query, texts(*(values[i] for i in order)))
    assert [plain[i] for i in order] == pytest.approx(shuffled) and all(score >= 0 for score in plain)
