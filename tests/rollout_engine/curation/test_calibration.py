"""Chances that keep what they promise."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_engine.curation.calibration import Calibration


def test_without_evidence_nothing_is_changed():
    calibration = Calibration(keep=0.9)
    assert [calibration.chance(p) for p in (0.0, 0.31, 1.0)] == [0.0, 0.31, 1.0]


def test_chances_that_never_come_true_shrink_and_others_stay():
    calibration = Calibration(keep=1.0)
    for _ in range(30):
        calibration.observe(0.3, False)
    assert calibration.chance(0.3) == pytest.approx(0.3 * 1 / (30 * 0.3 + 1))
    assert calibration.chance(0.9) == 0.9


def test_evidence_fades():
    calibration = Calibration(keep=0.5)
    for _ in range(32):
        calibration.observe(0.25, False)
    before = calibration.chance(0.25)
    calibration.fade(3)
    assert before == pytest.approx(0.25 / 9) and calibration.chance(0.25) == pytest.approx(0.25 / 2)


@settings(deadline=None)
@given(st.floats(0, 1), st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=30))
def test_a_chance_stays_one(chance, seen):
    calibration = Calibration(keep=1.0)
    for predicted, mixed in seen:
        calibration.observe(predicted, mixed)
    assert 0.0 <= calibration.chance(chance) <= 1.0


def test_it_converges_to_how_often_it_comes_true():
    rng, calibration = random.Random(0), Calibration(keep=0.999)
    for _ in range(4000):
        calibration.fade(1)
        calibration.observe(0.6, rng.random() < 0.4)
    assert calibration.chance(0.6) == pytest.approx(0.4, abs=0.03)
