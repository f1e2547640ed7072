import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner.logprobs import token_logprobs

R, S, D, V = 2, 37, 16, 50
RNG = np.random.default_rng(0)
HIDDEN, HEAD = RNG.normal(size=(R, S, D)).astype(np.float32), RNG.normal(size=(D, V)).astype(np.float32)
TARGETS = RNG.integers(0, V, (R, S))


def direct(hidden, head, temperature):
    logp = jax.nn.log_softmax(hidden @ head / temperature)
    return jnp.take_along_axis(logp, TARGETS[..., None], -1)[..., 0], -jnp.sum(jnp.exp(logp) * logp, -1)


@pytest.mark.parametrize("chunk", [1, 20, 74, 1000])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_any_chunk_gives_the_plain_values_and_gradients(chunk, temperature):
    def chunked(hidden, head):
        return token_logprobs(hidden, head, TARGETS, chunk=chunk, temperature=temperature)

    for ours, plain in zip(chunked(HIDDEN, HEAD), direct(HIDDEN, HEAD, temperature), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-5)
    cotangent = RNG.normal(size=(R, S)).astype(np.float32)
    ours = jax.grad(lambda h, w: jnp.sum(chunked(h, w)[0] * cotangent), (0, 1))(HIDDEN, HEAD)
    plain = jax.grad(lambda h, w: jnp.sum(direct(h, w, temperature)[0] * cotangent), (0, 1))(HIDDEN, HEAD)
    for a, b in zip(ours, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_no_gradient_flows_through_the_entropy():
    grad = jax.grad(lambda h: jnp.sum(token_logprobs(h, HEAD, TARGETS, chunk=8)[1]))(HIDDEN)
    assert (np.asarray(grad) == 0).all()


def test_memory_grows_with_the_chunk_not_with_the_tokens():
    def peak(places, chunk, vocabulary=4096, width=32):
        shapes = [
            jax.ShapeDtypeStruct((1, places, width), jnp.float32),
            jax.ShapeDtypeStruct((width, vocabulary), jnp.float32),
            jax.ShapeDtypeStruct((1, places), jnp.int32),
        ]
        loss = jax.grad(lambda h, w, t: jnp.sum(token_logprobs(h, w, t, chunk=chunk)[0]), (0, 1))
        return jax.jit(loss).lower(*shapes).compile().memory_analysis().temp_size_in_bytes

    logits = 4096 * 4096 * 4
    assert peak(4096, 64) < logits / 8, "full logits exist"
    assert peak(4096, 64) < 1.5 * peak(1024, 64)
    assert peak(4096, 1024) > 3 * peak(4096, 64)
