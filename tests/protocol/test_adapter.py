"""What a low-rank adapter makes of weights has one value, however it is computed."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from protocol import adapter

RANKS = st.integers(1, 40)


def pair(rng, rank, outputs=13, inputs=17):
    spread = np.exp2(rng.integers(-12, 12))
    a, b = rng.normal(size=(rank, inputs)) * spread, rng.standard_cauchy(size=(outputs, rank)) / spread
    return tuple(adapter.on_grid(x.astype(np.float32), rank) for x in (a, b))


@settings(max_examples=60, deadline=None)
@given(RANKS, st.integers(0, 2**32 - 1))
def test_the_product_of_factors_on_their_grid_is_exact_in_any_order(rank, seed):
    rng = np.random.default_rng(seed)
    a, b = (x.astype(np.float64) for x in pair(rng, rank))
    whole = b @ a
    order = rng.permutation(rank)
    backwards = np.zeros_like(whole)
    for k in order:
        backwards += np.outer(b[:, k], a[k])
    np.testing.assert_array_equal(whole, backwards)
    # In arithmetic that has more bits than any machine's.
    exact = sum(int(x * 2.0**80) * int(y * 2.0**80) for x, y in zip(b[0], a[:, 0], strict=True))
    assert int(whole[0, 0] * 2.0**160) == exact


def test_off_their_grid_the_order_shows():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(16, 200)).astype(np.float32), rng.normal(size=(200, 16)).astype(np.float32)
    wide = [x.astype(np.float64) for x in (a, b)]
    backwards = sum(np.outer(wide[1][:, k], wide[0][k]) for k in range(15, -1, -1))
    assert (wide[1] @ wide[0] != backwards).any()


@settings(max_examples=60, deadline=None)
@given(RANKS, st.integers(0, 2**32 - 1))
def test_any_block_of_the_merged_matrix_is_the_wholes(rank, seed):
    rng = np.random.default_rng(seed)
    a, b = pair(rng, rank)
    base = rng.normal(size=(13, 17)).astype(np.float32)
    whole = adapter.merged(base, a, b, 1 / 3)
    rows, columns = (slice(*sorted(rng.choice(n + 1, 2, replace=False))) for n in base.shape)
    np.testing.assert_array_equal(
        whole[rows, columns], adapter.merged(base[rows, columns], a[:, columns], b[rows], 1 / 3)
    )


FACTORS = arrays(np.float32, (3, 5), elements=st.floats(-(2.0**100), 2.0**100, width=32))


@given(FACTORS, RANKS)
def test_the_grid_is_near_and_stays_put(factor, rank):
    rounded = adapter.on_grid(factor, rank)
    bits = min(24, (53 - int(np.ceil(np.log2(rank)))) // 2)
    assert rounded.dtype == np.float32
    assert np.abs(rounded.astype(np.float64) - factor).max() <= 2.0**-bits * np.abs(factor).max(initial=0)
    np.testing.assert_array_equal(adapter.on_grid(rounded, rank), rounded)


def test_a_merge_is_the_sum_and_of_zeros_the_base():
    rng = np.random.default_rng(0)
    a, b = pair(rng, 4)
    base = rng.normal(size=(13, 17)).astype(np.float32)
    np.testing.assert_allclose(adapter.merged(base, a, b, 2.0), base + 2 * b @ a, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(adapter.merged(base, a, np.zeros_like(b), 2.0), base)


def test_a_factor_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="isn't finite"):
        adapter.on_grid(np.array([[1.0, np.inf]], np.float32), 1)


@given(arrays(np.float32, 8, elements=st.floats(allow_nan=False, width=32)))
def test_bfloat16_is_rounded_as_everywhere(x):
    bits = adapter.bfloat16_bits(x)
    np.testing.assert_array_equal(bits, x.astype(ml_dtypes.bfloat16).view(np.uint16))
    np.testing.assert_array_equal(adapter.from_bfloat16_bits(bits), x.astype(ml_dtypes.bfloat16).astype(np.float32))
