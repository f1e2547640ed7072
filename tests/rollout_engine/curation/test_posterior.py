from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import betabinom

from rollout_engine.curation.bands import BANDS, EDGES, assign_band, band_masses
from rollout_engine.curation.posterior import Posterior, jeffreys

R, D, M, F, N = BANDS

# Bands of k = 0..n passes of n attempts.
VECTORS = {
    1: [D, N],
    2: [R, D, N],
    3: [R, D, F, N],
    4: [R, D, M, F, N],
    5: [R, D, D, F, F, N],
    6: [R, D, D, M, F, F, N],
    8: [R, D, D, D, M, F, F, F, N],
    10: [R, D, D, D, D, M, F, F, F, F, N],
    16: [R] * 2 + [D] * 5 + [M] * 3 + [F] * 5 + [N] * 2,
    20: [R] * 2 + [D] * 7 + [M] * 3 + [F] * 7 + [N] * 2,
}


def test_the_published_worked_example():
    posterior = jeffreys(attempts=8, passes=3)
    assert (posterior.alpha, posterior.beta) == (3.5, 5.5)
    masses = band_masses(posterior)
    assert masses["difficult"] == pytest.approx(0.540, abs=5e-4)
    assert assign_band(masses) == "difficult"


@pytest.mark.parametrize("attempts", VECTORS)
def test_bands_of_every_count(attempts):
    found = [assign_band(band_masses(jeffreys(attempts, passes))) for passes in range(attempts + 1)]
    assert found == VECTORS[attempts]


@pytest.mark.parametrize(
    ("attempts", "passes", "band", "mass"),
    [(1, 0, D, 0.393), (1, 1, N, 0.396), (3, 0, R, 0.539), (3, 1, D, 0.502), (3, 2, F, 0.475), (3, 3, N, 0.593)],
)
def test_masses_of_few_attempts(attempts, passes, band, mass):
    assert band_masses(jeffreys(attempts, passes))[band] == pytest.approx(mass, abs=5e-4)


def test_mass_below_fifteen_percent_of_never_solved_tasks():
    assert jeffreys(8, 0).masses((0.15,))[0] == pytest.approx(0.8986, abs=5e-5)
    assert jeffreys(9, 0).masses((0.15,))[0] == pytest.approx(0.9172, abs=5e-5)


def test_a_tie_goes_to_the_harder_band():
    assert assign_band({R: 0.1, D: 0.3, M: 0.3, F: 0.3, N: 0.0}) == D


@given(st.integers(0, 500), st.data())
def test_masses_tile_the_unit_interval(attempts, data):
    passes = data.draw(st.integers(0, attempts))
    masses = jeffreys(attempts, passes).masses(EDGES)
    assert len(masses) == 5
    assert all(mass >= 0 for mass in masses)
    assert sum(masses) == pytest.approx(1.0, abs=1e-12)


@given(st.integers(1, 60))
def test_more_passes_never_make_a_task_harder(attempts):
    ranks = [BANDS.index(assign_band(band_masses(jeffreys(attempts, k)))) for k in range(attempts + 1)]
    assert ranks == sorted(ranks)


def test_interval_holds_its_level():
    posterior = jeffreys(8, 3)
    low, high = posterior.interval(0.9)
    assert posterior.masses((low, high))[1] == pytest.approx(0.9)
    assert low < posterior.mean < high


def test_the_uniform_posterior_has_its_quantiles_as_interval():
    assert Posterior(1, 1).interval(0.95) == pytest.approx((0.025, 0.975))


@pytest.mark.parametrize("passes", [-1, 9])
def test_impossible_counts_are_refused(passes):
    with pytest.raises(ValueError, match="of 8 attempts"):
        jeffreys(8, passes)


@pytest.mark.parametrize(("alpha", "beta", "attempts"), [(0.5, 0.5, 8), (3.5, 5.5, 8), (120.5, 0.5, 4), (1.0, 1.0, 2)])
def test_the_chance_of_a_mixed_group_is_the_beta_binomial_one(alpha, beta, attempts):
    exact = 1 - betabinom.pmf(0, attempts, alpha, beta) - betabinom.pmf(attempts, attempts, alpha, beta)
    assert Posterior(alpha, beta).mixed(attempts) == pytest.approx(exact, rel=1e-9)


def test_one_attempt_is_never_mixed_and_a_certain_task_hardly():
    assert Posterior(2.0, 3.0).mixed(1) == pytest.approx(0.0, abs=1e-15)
    assert Posterior(1e6, 0.5).mixed(8) < 1e-5
