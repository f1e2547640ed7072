import jax.numpy as jnp
import numpy as np
import pytest

from learner.optimizer import apply_update, make_optimizer, schedule
from protocol.config import Optimizer


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("constant", [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.25, 0.5, 0.75, 1.0, 1.0, 0.75, 0.5]),
        ("cosine", [0.25, 0.5, 0.75, 1.0, 1.0, (2 + 2**0.5) / 4, 0.5]),
    ],
)
def test_schedules_by_hand(kind, expected):
    rate = schedule(Optimizer(learning_rate=1.0, warmup_steps=4, schedule=kind), 8)
    np.testing.assert_allclose([rate(i) for i in range(7)], expected, rtol=1e-6)


def test_clip_and_decay():
    params = {"kernel": jnp.full((2, 2), 2.0), "norm": {"scale": jnp.full((2,), 2.0)}}
    optimizer = make_optimizer(Optimizer(learning_rate=0.1, weight_decay=0.5, clip_norm=1.0), 10)
    grads = {"kernel": jnp.full((2, 2), 30.0), "norm": {"scale": jnp.full((2,), 0.0)}}
    params, _, norm, applied = apply_update(optimizer, 1.0, params, optimizer.init(params), grads)
    assert float(norm) == pytest.approx(60.0) and bool(applied)
    # Adam's first step is the rate, whatever the gradient's size; decay adds rate * 0.5 * 2 to matrices only.
    np.testing.assert_allclose(params["kernel"], 2 - 0.1 - 0.1, rtol=1e-5)
    np.testing.assert_allclose(params["norm"]["scale"], 2.0)
