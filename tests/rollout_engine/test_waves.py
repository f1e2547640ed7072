"""Wave sizes: the exact tail, the smallest count that meets the confidence, and that it costs the least."""

from functools import cache
from itertools import product
from math import comb, prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_engine.waves import fill_chance, wave_size

chances = st.lists(st.floats(0, 1), max_size=7)


@settings(deadline=None)
@given(chances, st.integers(0, 8))
def test_the_tail_is_the_sum_over_every_outcome(chances, needed):
    brute = sum(
        prod(p if hit else 1 - p for p, hit in zip(chances, hits, strict=True))
        for hits in product((True, False), repeat=len(chances))
        if sum(hits) >= needed
    )
    assert fill_chance(chances, needed) == pytest.approx(brute, abs=1e-12)


def test_equal_chances_are_binomial():
    exact = sum(comb(40, k) * 0.4**k * 0.6 ** (40 - k) for k in range(16, 41))
    assert fill_chance([0.4] * 40, 16) == pytest.approx(exact, rel=1e-12)


@settings(deadline=None)
@given(chances, st.lists(st.floats(0.05, 1), min_size=60, max_size=60), st.integers(1, 6), st.floats(0, 0.99))
def test_a_wave_is_the_smallest_that_meets_the_confidence(pending, upcoming, needed, confidence):
    size = wave_size(needed, pending, upcoming.__getitem__, confidence, 60)
    all_of = [*pending, *upcoming]
    launched = len(pending) + size
    could = max(0, needed - len(pending))
    assert size >= could
    assert size == 60 or fill_chance(all_of[:launched], needed) >= confidence
    assert size <= could or fill_chance(all_of[: launched - 1], needed) < confidence


def test_confidence_zero_launches_exactly_what_is_missing_and_the_limit_holds():
    assert wave_size(5, [0.5, 0.5], lambda i: 0.1, 0.0, 100) == 3
    assert wave_size(5, [], lambda i: 0.1, 0.9, 7) == 7
    assert wave_size(2, [1.0, 1.0, 0.3], lambda i: 0.5, 0.9, 100) == 0
    assert wave_size(3, [], lambda i: 0.0, 0.9, 20) == 20, "a pool that is never mixed runs into the bound"


@pytest.mark.parametrize("chance", [0.2, 0.4, 0.7, 0.9])
@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.95])
def test_no_larger_wave_has_fewer_expected_groups(chance, confidence):
    """Expected groups over all waves, the later ones sized by the same rule, against every larger first wave."""

    def sized(needed):
        return wave_size(needed, [], lambda i: chance, confidence, 1000)

    @cache
    def expected(needed, first=None):
        size = first or sized(needed)
        short = (
            (comb(size, k) * chance**k * (1 - chance) ** (size - k), needed - k) for k in range(min(needed, size + 1))
        )
        # A wave that yields nothing is followed by the same one: solve for it instead of recursing.
        total, again = float(size), 0.0
        for probability, left in short:
            if left == needed and first is None:
                again = probability
            else:
                total += probability * expected(left)
        return total / (1 - again)

    best = sized(16)
    assert expected(16) <= min(expected(16, first) for first in range(best, best + 30)) + 1e-9
