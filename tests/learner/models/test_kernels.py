from __future__ import annotations

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner.mesh import make_mesh
from learner.models import kernels


@pytest.mark.parametrize(
    ("operation", "dtype", "tokens", "width", "installed", "name"),
    [
        ("attention", jnp.bfloat16, 100_000, 128, True, "jla"),
        ("attention", jnp.bfloat16, 16_384, 256, True, "cudnn"),
        ("attention", jnp.bfloat16, 16_385, 256, True, "plain"),
        ("attention", jnp.bfloat16, 512, 128, False, "cudnn"),
        ("attention", jnp.float32, 512, 128, True, "plain"),
        ("delta", jnp.bfloat16, 100_000, 128, True, "jla"),
        ("delta", jnp.bfloat16, 512, 128, False, "plain"),
        ("convolution", jnp.bfloat16, 512, 128, True, "jla"),
    ],
)
def test_what_hopper_runs(monkeypatch, operation, dtype, tokens, width, installed, name):
    monkeypatch.setattr(kernels, "on_hopper", lambda: True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: installed)
    x = jax.ShapeDtypeStruct((1, tokens, 4, width), dtype)
    assert kernels.choose(operation, x) == name
    assert kernels.choose(operation, x, "plain") == "plain"


def chooses(name: str):
    return lambda operation, x, kernels="auto": "plain" if kernels == "plain" else name


def test_a_cpu_runs_plain_jax_and_the_comparison_measures_rounding():
    for errors in kernels.compare(("delta", "convolution"), heads=2, width=8, tokens=256).values():
        assert errors.pop("kernel") == "plain"
        assert all(0 < error < 0.01 for error in errors.values())


@pytest.mark.skipif(not importlib.util.find_spec("jla"), reason="jax-linear-attention needs Python 3.12 and JAX 0.11")
def test_the_library_means_what_plain_jax_means(monkeypatch):
    monkeypatch.setattr(kernels, "choose", chooses("jla"))
    for errors in kernels.compare(heads=2, width=64, tokens=320).values():
        assert errors.pop("kernel") == "jla"
        assert max(errors.values()) < 0.01


def test_a_wrong_kernel_is_seen(monkeypatch):
    monkeypatch.setattr(kernels, "choose", chooses("wrong"))

    def leaks(q, k, v, segments):
        return kernels.plain_attention.segment_attention(q, k, v, jnp.ones_like(segments))

    monkeypatch.setitem(kernels.ATTENTION, "wrong", leaks)
    assert kernels.compare(("attention",), heads=2, width=8, tokens=256)["attention"]["output"] > 0.1


@pytest.mark.parametrize("kernel", ["plain", "by device"])
@pytest.mark.parametrize(("heads", "kv_heads"), [(24, 4), (6, 2)], ids=["4 of 8", "indivisible"])
def test_heads_over_a_mesh(monkeypatch, heads, kv_heads, kernel):
    """4 key heads on 8 devices are repeated; 6 query heads stay whole."""
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.normal(size=(1, 64, h, 8)), jnp.float32) for h in (heads, kv_heads, kv_heads))
    segments = np.repeat([[1, 2]], 32, axis=1)
    wanted = kernels.attention(q, k, v, segments)
    monkeypatch.setattr(kernels, "choose", lambda *a: kernel)
    monkeypatch.setitem(kernels.ATTENTION, "by device", kernels.plain_attention.segment_attention)
    with jax.set_mesh(make_mesh("1x8")):
        actual = jax.jit(lambda *a: kernels.attention(*a, segments))(q, k, v)
    np.testing.assert_allclose(actual, wanted, atol=1e-5)
