from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner.models import attention


def dense(q, k, v, segments):
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    scores = jnp.einsum("rqhd,rkhd->rhqk", q, k) * q.shape[-1] ** -0.5
    seen = jnp.tril(segments[:, :, None] == segments[:, None, :])
    weights = jax.nn.softmax(jnp.where(seen[:, None], scores, -jnp.inf), axis=-1)
    return jnp.einsum("rhqk,rkhd->rqhd", weights, v)


def inputs(tokens: int, rows: int = 2, heads: int = 4, kv_heads: int = 2):
    rng = np.random.default_rng(tokens)
    q, k, v = (rng.normal(size=(rows, tokens, h, 8)).astype(np.float32) for h in (heads, kv_heads, kv_heads))
    return q, k, v, np.sort(rng.integers(0, 5, (rows, tokens)), axis=1).astype(np.int32)


@pytest.mark.parametrize("tokens", [1, 40, 270])
def test_values_and_gradients_are_those_of_dense_attention(monkeypatch, tokens):
    """Rows of 270 are three spans of six blocks of 16, the last cut short."""
    monkeypatch.setattr(attention, "BLOCK", 16)
    monkeypatch.setattr(attention, "SPANS", 3)
    q, k, v, segments = inputs(tokens)

    def both(function):
        return jax.jit(lambda *a: jax.value_and_grad(lambda *a: jnp.sum(function(*a, segments) ** 2), (0, 1, 2))(*a))(
            q, k, v
        )

    (value, grads), (wanted, wanted_grads) = both(attention.segment_attention), both(dense)
    assert float(value) == pytest.approx(float(wanted), rel=1e-5)
    for grad, expected in zip(grads, wanted_grads, strict=True):
        np.testing.assert_allclose(grad, expected, atol=1e-4)


def test_memory_is_not_that_of_all_scores():
    tokens = 4096
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in inputs(tokens, 1, 1, 1)]
    gradient = jax.grad(lambda q, k, v, s: jnp.sum(attention.segment_attention(q, k, v, s)), (0, 1, 2))
    compiled = jax.jit(gradient).lower(*shapes).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < tokens**2
