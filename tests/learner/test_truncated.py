from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from tiny import init, make_streams, write_config

from learner.collectives import collectives
from learner.grpo import policy_loss
from learner.hlo import Program
from learner.logprobs import token_logprobs
from learner.mesh import make_mesh
from learner.models.family import head
from learner.models.model import Model
from learner.packing import pack
from learner.step import sampled_logprobs
from learner.truncated import support_logprobs
from protocol.config import Loss

R, S, D, V, K = 2, 48, 16, 96, 5
RNG = np.random.default_rng(1)
HIDDEN, HEAD = RNG.normal(size=(R, S, D)).astype(np.float32), RNG.normal(size=(D, V)).astype(np.float32)
COTANGENT = RNG.normal(size=(R, S)).astype(np.float32)


def supports(rng, vocabulary: int, count: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """(support [count, width] of one to ``width`` ids, -1 after them; one of each at random)."""
    ids = np.stack([rng.choice(vocabulary, width, replace=False) for _ in range(count)]).astype(np.int32)
    sizes = rng.integers(1, width + 1, count)
    targets = ids[np.arange(count), rng.integers(0, sizes)]
    return np.where(np.arange(width) < sizes[:, None], ids, -1), targets


SUPPORT, TARGETS = (x.reshape(R, S, *x.shape[1:]) for x in supports(RNG, V, R * S, K))


def direct(hidden, head, temperature=1.0):
    there = np.zeros((R, S, V + 1), bool)
    np.put_along_axis(there, SUPPORT, True, -1)
    there = there[..., :V]  # the last column is -1's
    logp = jax.nn.log_softmax(jnp.where(there, hidden @ head / temperature, -jnp.inf))
    kept = jnp.where(there, logp, 0.0)
    entropy = -jnp.sum(jnp.where(there, jnp.exp(kept) * kept, 0.0), -1)
    return jnp.take_along_axis(logp, TARGETS[..., None], -1)[..., 0], entropy


@pytest.mark.parametrize(("chunk", "temperature"), [(1, 1.0), (20, 0.7), (1000, 1.0)])
def test_values_and_gradients_are_those_of_a_softmax_with_all_else_left_out(chunk, temperature):
    def ours(hidden, head):
        return support_logprobs(hidden, head, TARGETS, SUPPORT, chunk=chunk, temperature=temperature)

    def gradient(function):
        def loss(hidden, head):
            out = function(hidden, head)
            return jnp.sum(out[0] * COTANGENT), out

        return jax.jit(jax.grad(loss, (0, 1), has_aux=True))(HIDDEN, HEAD)

    both = gradient(ours), gradient(partial(direct, temperature=temperature))
    for a, b in zip(*map(jax.tree.leaves, both), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_a_token_that_could_be_no_other_has_log_probability_zero_and_no_gradient():
    alone = np.full((R, S, K), -1, np.int32)
    alone[..., 0] = TARGETS

    def loss(hidden):
        logprob, entropy = support_logprobs(hidden, HEAD, TARGETS, alone, chunk=16)
        return jnp.sum(logprob * COTANGENT), (logprob, entropy)

    grad, (logprob, entropy) = jax.jit(jax.grad(loss, has_aux=True))(HIDDEN)
    np.testing.assert_array_equal([logprob, entropy], 0)
    np.testing.assert_allclose(grad, 0, atol=1e-6)


def test_places_without_support_are_zero_whatever_lies_there():
    support = np.where(np.arange(S)[None, :, None] < 3, SUPPORT, -1)

    def loss(hidden):
        out = support_logprobs(hidden, HEAD, TARGETS, support, chunk=16)
        return jnp.sum(out[0]), out

    grad, (logprob, entropy) = jax.jit(jax.grad(loss, has_aux=True))(HIDDEN)
    assert (np.asarray(logprob)[:, 3:] == 0).all() and (np.asarray(entropy)[:, 3:] == 0).all()
    assert (np.asarray(grad)[:, 3:] == 0).all() and np.isfinite(grad).all()


def test_the_whole_vocabulary_as_support_is_the_plain_softmax():
    everything = np.broadcast_to(np.arange(V, dtype=np.int32), (R, S, V))
    for a, b in zip(
        support_logprobs(HIDDEN, HEAD, TARGETS, everything, chunk=16),
        token_logprobs(HIDDEN, HEAD, TARGETS, chunk=16),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["full", "truncated"])
def test_over_a_mesh_numbers_are_the_same_and_the_head_stays_where_it_is(kind):
    mesh = make_mesh("2x4")
    at = [
        NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data", "model"), (None, "model"), ("data",), ("data",))
    ]

    def loss(hidden, head, targets, support):
        if kind == "full":
            out = token_logprobs(hidden, head, targets, chunk=32, tile=7)
        else:
            out = support_logprobs(hidden, head, targets, support, chunk=32)
        return jnp.sum(out[0] * COTANGENT), out

    gradient = jax.grad(loss, (0, 1), has_aux=True)
    arguments = (HIDDEN, HEAD, TARGETS, SUPPORT)
    with jax.set_mesh(mesh):
        placed = jax.jit(gradient, in_shardings=at, out_shardings=((at[0], at[1]), None))
        compiled = placed.lower(*arguments).compile()
        out = compiled(*map(jax.device_put, arguments, at))
    for a, b in zip(jax.tree.leaves(out), jax.tree.leaves(jax.jit(gradient)(*arguments)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    moved = collectives(Program(compiled.as_text()))
    # One device's part of the head's gradient, summed over data, once; else a chunk's hidden states at most.
    part = D * V // 4
    sizes = [(c.times, sum(np.prod(a.shape) for a in c.arrays)) for c in moved]
    assert [times for times, size in sizes if size == part] == [1]
    assert max(size for _, size in sizes if size != part) <= 32 // 2 * D


def test_of_an_update_the_ratio_is_one_at_equal_weights_and_only_over_the_supports(tmp_path):
    model = write_config(tmp_path)
    params = init(model)
    rng, streams = np.random.default_rng(0), []
    for stream in make_streams(5):
        support, _ = supports(rng, 64, len(stream.sampled), 4)
        support[:, 1:][support[:, 1:] == stream.ids[stream.sampled][:, None]] = -1
        support[:, 0] = stream.ids[stream.sampled]
        streams.append(stream._replace(support=support))
    (batch,) = pack(streams, 64, 5, support=4)
    assert (batch.support[~batch.valid] == -1).all() and (batch.support[batch.valid][:, 0] >= 0).all()

    # What an actor with the same weights would say.
    hidden = jax.jit(Model(model).apply)({"params": params}, batch.ids, batch.positions, batch.segments)
    logits = np.take_along_axis(np.asarray(hidden), batch.index[..., None], 1) @ np.asarray(head(params)) / 0.8
    chosen = np.take_along_axis(logits, batch.targets[..., None], -1)[..., 0]
    full = chosen - np.log(np.exp(logits).sum(-1))
    of_support = np.where(batch.support >= 0, np.take_along_axis(logits, np.maximum(batch.support, 0), -1), -np.inf)
    mass = np.exp(of_support).sum(-1)
    over = chosen - np.log(np.where(batch.valid, mass, 1.0))

    logprobs, entropy = jax.jit(lambda p, b: sampled_logprobs(p, b, model, 64, 0.8))(params, batch)

    def largest(behaviour):
        return float(policy_loss(logprobs, behaviour, batch.weights, entropy, batch.valid, Loss()).largest)

    assert largest(over) < 1e-5
    assert largest(full) > 1
