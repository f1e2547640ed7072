"""Our clock and a server's: as near as the quickest answer tells, and anew once one of them is set."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.skew import Skew

SECONDS = st.floats(0, 5)


@given(st.floats(-1e5, 1e5), st.lists(st.tuples(SECONDS, SECONDS), min_size=1))
def test_it_is_never_further_off_than_half_the_quickest_answer(ahead, legs):
    skew, now = Skew(), 1e6
    for there, back in legs:
        skew.observe(now, now + there + back, now + there - ahead)
        now += 10
    assert abs(skew.ahead - ahead) <= min(there + back for there, back in legs) / 2 + 1e-6


def test_a_slow_answer_changes_nothing_and_a_clock_that_is_set_everything():
    skew = Skew()
    skew.observe(100.0, 100.2, 50.0)
    assert skew.ahead == pytest.approx(50.1)
    skew.observe(110.0, 118.0, 61.0)
    assert skew.ahead == pytest.approx(50.1)
    skew.observe(120.0, 120.4, 3670.2)
    assert skew.ahead == pytest.approx(-3550.0)
