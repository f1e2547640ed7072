"""The chunked delta rule against its definition, token by token in float64."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.models import delta

TOKENS = 160


def by_token(q, k, v, decay, strength, segments):
    q, k, v, decay, strength = (np.asarray(x, np.float64)[0] for x in (q, k, v, decay, strength))
    q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
    q = q * q.shape[-1] ** -0.5
    state, out = np.zeros((v.shape[1], k.shape[-1], v.shape[-1])), []
    for t in range(len(v)):
        if t and segments[0, t] != segments[0, t - 1]:
            state[:] = 0
        state *= np.exp(decay[t])[:, None, None]
        error = v[t] - np.einsum("hkv,hk->hv", state, k[t])
        state += np.einsum("hk,hv->hkv", k[t] * strength[t][:, None], error)
        out.append(np.einsum("hkv,hk->hv", state, q[t]))
    return np.stack(out)[None]


def inputs(seed: int, steepest: float = 3.0):
    rng = np.random.default_rng(seed)
    q, k, v = rng.normal(size=(3, 1, TOKENS, 2, 4)).astype(np.float32)
    decay = -rng.uniform(0, steepest, (1, TOKENS, 2)).astype(np.float32)
    return q, k, v, decay, rng.uniform(0, 1, (1, TOKENS, 2)).astype(np.float32)


def segments_of(lengths) -> np.ndarray:
    return np.repeat(np.arange(1, len(lengths) + 1), lengths)[None].astype(np.int32)


rule = jax.jit(delta.gated_delta_rule)
EDGES = segments_of([64, 30, 50, 1, 1, 14])
"""The second segment starts on a chunk's edge, the third runs across one."""


@settings(max_examples=40, deadline=None)
@given(
    cuts=st.lists(st.integers(1, TOKENS - 1), unique=True), seed=st.integers(0, 9), steepest=st.sampled_from([0, 3, 90])
)
def test_any_segmentation_is_as_by_token(cuts, seed, steepest):
    """Sums of log decays are float32, so the steeper, the coarser."""
    segments = segments_of(np.diff([0, *sorted(cuts), TOKENS]))
    arrays = inputs(seed, steepest)
    np.testing.assert_allclose(rule(*arrays, segments), by_token(*arrays, segments), atol=1e-5 * max(1, steepest))


@pytest.mark.parametrize("mask", ["pairs", "entering", "leaving", "surviving"])
def test_without_one_of_its_masks_it_is_wrong(monkeypatch, mask):
    class Leaky(delta.SegmentMasks):
        def __init__(self, segments, before):
            super().__init__(segments, before)
            setattr(self, mask, getattr(delta_masks(jnp.ones_like(segments), before), mask))

    delta_masks = delta.SegmentMasks
    monkeypatch.setattr(delta, "SegmentMasks", Leaky)
    arrays = inputs(0, 0.1)
    actual = jax.jit(lambda *a: delta.gated_delta_rule(*a))(*arrays, EDGES)
    assert not np.abs(actual - by_token(*arrays, EDGES)).max() < 1e-2


@pytest.mark.parametrize("chunks", [1, 2])
def test_a_row_of_many_spans_is_as_one_of_one(monkeypatch, chunks):
    """With segments that end with a span and that run across its edge; gradients, too."""
    arrays = inputs(2, 0.1)

    def results():
        return jax.jit(jax.value_and_grad(lambda arrays: jnp.sum(delta.gated_delta_rule(*arrays, EDGES) ** 2)))(arrays)

    whole = results()
    monkeypatch.setattr(delta, "SPAN", chunks * delta.CHUNK)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), results(), whole)


@pytest.mark.parametrize("steepest", [3.0, 90.0])
def test_gradients_are_finite_and_reset(steepest):
    """What comes before or after a segment has no gradient from its outputs, even where decay takes all away."""

    @jax.jit
    @jax.grad
    def gradient(arrays):
        return jnp.sum(jnp.where(EDGES[..., None, None] == 2, delta.gated_delta_rule(*arrays, EDGES), 0.0) ** 2)

    for grad in gradient(inputs(1, steepest)):
        assert np.isfinite(grad).all()
        assert np.abs(grad[EDGES == 2]).max() > 0
        assert not grad[EDGES != 2].any()


def test_the_short_convolution_is_causal_silent_and_reset():
    rng = np.random.default_rng(0)
    x, weight = rng.normal(size=(1, 9, 3)).astype(np.float32), rng.normal(size=(3, 4)).astype(np.float32)
    segments = segments_of([1, 2, 6])
    wanted = np.zeros_like(x)
    for t, start in enumerate([0, 1, 1, 3, 3, 3, 3, 3, 3]):
        for lag in range(min(4, t - start + 1)):
            wanted[0, t] += x[0, t - lag] * weight[:, 3 - lag]
    wanted = wanted / (1 + np.exp(-wanted))
    np.testing.assert_allclose(delta.short_convolution(x, weight, segments), wanted, atol=1e-6)
