import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner.grpo import group_advantages, policy_loss
from protocol.config import Loss


def test_advantages_by_hand():
    # Group a: mean 1/4, sample deviation 1/2. Group b, interleaved: mean 1, sample deviation sqrt(2).
    advantages = group_advantages([1, 0, 0, 2, 0, 0], ["a", "a", "a", "b", "a", "b"])
    np.testing.assert_allclose(advantages, [1.5, -0.5, -0.5, 1 / 2**0.5, -0.5, -1 / 2**0.5], rtol=1e-5)


def test_equal_rewards_and_lone_members_have_no_advantage():
    assert (group_advantages([0.3, 0.3, 0.3, 7.0], [0, 0, 0, 1]) == 0).all()


def test_masked_samples_have_no_vote():
    advantages = group_advantages([1, 0, 100], [0, 0, 0], voting=[True, True, False])
    np.testing.assert_allclose(advantages, [1 / 2**0.5, -1 / 2**0.5, 0], rtol=1e-5)


def one(ratio, advantage, **loss):
    """Loss of one token whose ratio to the behaviour policy is ``ratio``, and the gradient in its log-probability."""

    def value(logprob):
        arrays = (jnp.array([-2.0]), jnp.array([advantage]), jnp.zeros(1), jnp.array([True]))
        return policy_loss(logprob[None], *arrays, Loss(**loss)).loss

    return jax.value_and_grad(value)(jnp.float32(-2.0 + np.log(ratio)))


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.1, 2.0, -2.2, -2.2),
        (1.5, 2.0, -2.6, 0.0),  # clipped at 1 + 0.3
        (0.5, 2.0, -1.0, -1.0),  # a good token that fell is not clipped
        (0.5, -2.0, 1.6, 0.0),  # clipped at 1 - 0.2
        (1.5, -2.0, 3.0, 3.0),
        (5.0, -2.0, 6.0, 0.0),  # dual clip at 3
    ],
)
def test_clip_by_hand(ratio, advantage, loss, gradient):
    value, grad = one(ratio, advantage, clip_low=0.2, clip_high=0.3, dual_clip=3.0)
    assert float(value) == pytest.approx(loss, rel=1e-5)
    assert float(grad) == pytest.approx(gradient, rel=1e-5, abs=1e-6)


def test_without_dual_clip_the_loss_grows():
    assert float(one(5.0, -2.0, dual_clip=None)[0]) == pytest.approx(10.0, rel=1e-5)


def test_log_ratio_is_bounded():
    assert float(one(np.exp(30.0), -1.0, dual_clip=None)[0]) == pytest.approx(np.exp(20.0), rel=1e-4)


@pytest.mark.parametrize(("ratio", "weight"), [(0.5, 0.5), (1.5, 1.5), (4.0, 2.0)])
def test_truncated_importance_weight(ratio, weight):
    value, grad = one(ratio, 1.0, truncated_is=2.0)
    assert float(value) == pytest.approx(-weight, rel=1e-5)
    assert float(grad) == pytest.approx(-weight, rel=1e-5), "the weight scales the gradient and takes none itself"


def test_nan_where_masked_changes_nothing():
    rng = np.random.default_rng(0)
    logprobs, behaviour, advantages, entropy = rng.normal(size=(4, 3, 5)).astype(np.float32)
    valid = rng.random((3, 5)) < 0.5

    def value(logprobs, behaviour, advantages, entropy):
        sums = policy_loss(logprobs, behaviour, advantages, entropy, valid, Loss())
        return sums.loss, sums

    def run(bad):
        arrays = [jnp.where(valid, x, bad) for x in (logprobs, behaviour, advantages, entropy)]
        return jax.grad(value, has_aux=True)(*arrays)

    clean, dirty = run(0.0), run(jnp.nan)
    jax.tree.map(np.testing.assert_array_equal, clean, dirty)
    assert (np.asarray(dirty[0])[~valid] == 0).all()
