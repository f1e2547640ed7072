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


def test_any_tile_of_the_vocabulary_gives_the_same():
    expected = token_logprobs(HIDDEN, HEAD, TARGETS, chunk=20, temperature=0.7)
    cotangent = RNG.normal(size=(R, S)).astype(np.float32)

    def loss(hidden, head, tile):
        return jnp.sum(token_logprobs(hidden, head, TARGETS, chunk=20, temperature=0.7, tile=tile)[0] * cotangent)

    whole = jax.grad(loss, (0, 1))(HIDDEN, HEAD, V)
    # Three tiles, of which the last shares a column with the one before; and two, of which it shares all but one.
    for tile in (17, 49):
        tiled = token_logprobs(HIDDEN, HEAD, TARGETS, chunk=20, temperature=0.7, tile=tile)
        for ours, one in zip(tiled, expected, strict=True):
            np.testing.assert_allclose(ours, one, rtol=1e-5, atol=1e-5)
        for ours, one in zip(jax.grad(loss, (0, 1))(HIDDEN, HEAD, tile), whole, strict=True):
            np.testing.assert_allclose(ours, one, rtol=1e-5, atol=1e-5)


def test_logits_of_any_size_are_finite():
    hidden = np.array([[[300.0], [-300.0], [0.0]]], np.float32)
    head = np.linspace(-100, 100, 7, dtype=np.float32)[None]
    for tile in (7, 3):
        logprob, entropy = token_logprobs(hidden, head, np.array([[6, 6, 6]]), chunk=3, tile=tile)
        np.testing.assert_allclose(logprob, [[0, -60_000, -np.log(7)]], rtol=1e-6)
        np.testing.assert_allclose(entropy, [[0, 0, np.log(7)]], atol=1e-6)


def test_products_in_bfloat16_leave_a_gradient_in_the_heads_own_type():
    hidden, grads = HIDDEN.astype(jnp.bfloat16), []
    for dtype in (jnp.float32, jnp.bfloat16):
        head = HEAD.astype(jnp.bfloat16).astype(dtype)
        grads.append(jax.grad(lambda h, w: jnp.sum(token_logprobs(h, w, TARGETS, chunk=20)[0]), (0, 1))(hidden, head))
        assert (grads[-1][0].dtype, grads[-1][1].dtype) == (jnp.bfloat16, dtype)
    np.testing.assert_array_equal(grads[0][1].astype(jnp.bfloat16), grads[1][1])
    plain = jax.grad(lambda w: jnp.sum(direct(hidden.astype(np.float32), w, 1.0)[0]))(HEAD)
    np.testing.assert_allclose(grads[0][1], plain, atol=0.02 * np.abs(plain).max())


WIDTH = 8


def peak(places: int, vocabulary: int, chunk: int, tile: int) -> int:
    """Bytes of temporaries of the compiled gradient."""
    shapes = [
        jax.ShapeDtypeStruct((1, places, WIDTH), jnp.float32),
        jax.ShapeDtypeStruct((WIDTH, vocabulary), jnp.float32),
        jax.ShapeDtypeStruct((1, places), jnp.int32),
    ]
    loss = jax.grad(lambda h, w, t: jnp.sum(token_logprobs(h, w, t, chunk=chunk, tile=tile)[0]), (0, 1))
    return jax.jit(loss).lower(*shapes).compile().memory_analysis().temp_size_in_bytes


def test_memory_grows_with_chunk_and_tile_not_with_places_nor_with_the_vocabulary():
    places, vocabulary, chunk, tile = 4096, 16384, 256, 2048
    logits = 4 * chunk * tile
    usual = peak(places, vocabulary, chunk, tile)
    assert usual < 4 * places * vocabulary / 25, "full logits exist"
    assert usual < 4 * logits
    # What is kept of a place, or of a column, is a few times its hidden state, or its part of the head.
    assert peak(4 * places, vocabulary, chunk, tile) - usual < 4 * 4 * WIDTH * 3 * places
    assert peak(places, 4 * vocabulary, chunk, tile) - usual < 4 * 4 * WIDTH * 3 * vocabulary
    assert peak(places, vocabulary, 4 * chunk, tile) - usual > 2 * logits
    assert peak(places, vocabulary, chunk, 4 * tile) - usual > 2 * logits
