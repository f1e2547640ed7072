"""Each family against transformers, packed against alone, and with each reset taken away."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.logprobs import at_places, token_logprobs
from learner.models import attention, delta
from learner.models.family import head
from learner.models.huggingface import (
    carried_tensors,
    export_tensors,
    init_params,
    load_params,
    open_tensors,
    read_config,
)
from learner.models.model import Model
from learner.models.qwen3 import Qwen3
from learner.models.qwen3_5 import Qwen35
from learner.models.rotary import Rotary
from learner.weights import write_tensors
from tests.learner.models.references import Row, transformers

LONG = slice(0, 6)
"""64, 70, 1, 1, 100 and 2 tokens: the second starts on a chunk's edge, and two run across one."""
SHORT = slice(6, 56)
"""Fifty of 1 to 7 tokens."""


def packed(expected, which: slice, tokens: int) -> tuple[Row, list[np.ndarray]]:
    places = range(56)[which]
    return Row.of([expected[f"ids{i}"] for i in places], tokens), [expected[f"logits{i}"] for i in places]


@jax.jit(static_argnums=0)
def all_logits(config, params, ids, positions, segments):
    return Model(config).apply({"params": params}, ids, positions, segments) @ head(params)


def error(config, params, row: Row, logits: list[np.ndarray], forward=all_logits) -> float:
    actual = np.asarray(forward(config, params, row.ids, row.positions, row.segments))[0]
    wanted = np.concatenate(logits)
    return np.abs(actual[: len(wanted)] - wanted).max() / np.abs(wanted).max()


@pytest.mark.parametrize(("which", "tokens"), [(LONG, 240), (SHORT, 240)], ids=["long", "fifty"])
def test_packed_logits_match_transformers(reference, which, tokens):
    folder, expected = reference
    config = read_config(folder)
    assert error(config, load_params(config, folder), *packed(expected, which, tokens)) < 1e-4


@pytest.mark.parametrize(("family", "remat"), [("qwen3", "layer"), ("smollm2", "none"), ("qwen3_5", "offload")])
def test_packed_gradients_match_transformers(references, family, remat):
    folder = references / family
    expected = dict(np.load(folder / "reference.npz"))
    config = read_config(folder, remat=remat)
    params = load_params(config, folder)
    rows = [packed(expected, which, 240)[0] for which in (LONG, SHORT)]
    ids, positions, segments = (np.concatenate([getattr(r, f) for r in rows]) for f in ("ids", "positions", "segments"))
    # A place predicts the next token where that is of the same segment.
    valid = (segments[:, :-1] == segments[:, 1:]) & (segments[:, 1:] > 0)
    index = np.broadcast_to(np.arange(239), valid.shape)

    @jax.jit
    @jax.value_and_grad
    def loss(params):
        hidden = at_places(Model(config).apply({"params": params}, ids, positions, segments), index)
        logprobs, _ = token_logprobs(hidden, head(params), ids[:, 1:], chunk=100)
        return jnp.sum(jnp.where(valid, logprobs, 0.0))

    value, grads = loss(params)
    assert float(value) == pytest.approx(float(expected["loss"]), rel=1e-5)
    for name, grad in export_tensors(config, grads, "float32"):
        wanted = expected[f"grad:{name}"]
        assert np.linalg.norm(grad - wanted) / np.linalg.norm(wanted) < 5e-4, name


def blind(function):
    """``function`` for which all tokens are of one segment; segments are its fourth, sixth or third argument."""
    places = {"segment_attention": 3, "gated_delta_rule": 5, "short_convolution": 2}

    def without(*arrays):
        at = places[function.__name__]
        return function(*arrays[:at], jnp.ones_like(arrays[at]), *arrays[at + 1 :])

    return without


@pytest.mark.parametrize(
    ("family", "module", "function"),
    [
        ("qwen3", attention, "segment_attention"),
        ("qwen3_5-text", attention, "segment_attention"),
        ("qwen3_5-text", delta, "gated_delta_rule"),
        ("qwen3_5-text", delta, "short_convolution"),
    ],
)
def test_without_a_reset_it_is_wrong(references, monkeypatch, family, module, function):
    folder = references / family
    expected = dict(np.load(folder / "reference.npz"))
    config = read_config(folder)
    params = load_params(config, folder)
    monkeypatch.setattr(module, function, blind(getattr(module, function)))
    logits = jax.jit(lambda p, *row: all_logits.__wrapped__(config, p, *row))
    forward = lambda _, *arrays: logits(*arrays)  # noqa: E731
    assert error(config, params, *packed(expected, LONG, 240), forward=forward) > 1e-2


SIZES = {
    "vocab_size": 31,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
TINY = {
    "qwen3": Qwen3(**SIZES, num_hidden_layers=2, rotary=Rotary(1e4, 8)),
    "qwen3_5": Qwen35(
        **SIZES,
        num_hidden_layers=2,
        rotary=Rotary(1e4, 2),
        full_attention_interval=2,
        linear_conv_kernel_dim=4,
        linear_key_head_dim=4,
        linear_value_head_dim=4,
        linear_num_key_heads=1,
        linear_num_value_heads=2,
    ),
}
TOKENS, MOST = 160, 50
CUTS = st.lists(st.integers(1, TOKENS - 1), unique=True, max_size=MOST - 1).map(lambda cuts: sorted({0, *cuts}))


@pytest.mark.parametrize("family", TINY)
@settings(max_examples=8, deadline=None)
@given(starts=CUTS, seed=st.integers(0, 99))
def test_any_segmentation_equals_each_segment_alone(family, starts, seed):
    config = TINY[family]
    params = init_params(config, jax.random.key(seed))
    ids = np.random.default_rng(seed).integers(0, 31, TOKENS)
    sequences = np.split(ids, starts[1:])
    together = Row.of(sequences, TOKENS)
    alone = [Row.of([s], TOKENS) for s in sequences] + [Row.of([ids[:0]], TOKENS)] * (MOST - len(sequences))
    rows = (np.concatenate([getattr(row, f) for row in alone]) for f in ("ids", "positions", "segments"))
    apart = np.asarray(all_logits(config, params, *rows))
    wanted = np.concatenate([apart[i, : len(s)] for i, s in enumerate(sequences)])
    actual = np.asarray(all_logits(config, params, together.ids, together.positions, together.segments))[0]
    np.testing.assert_allclose(actual, wanted, atol=2e-4 * np.abs(wanted).max())


def test_what_is_exported_transformers_reads(references):
    for folder in references.iterdir():
        config = read_config(folder)
        export = folder / "export"
        export.mkdir()
        (export / "config.json").write_bytes((folder / "config.json").read_bytes())
        carried = carried_tensors(config, folder)
        write_tensors(export / "model.safetensors", config, load_params(config, folder), "float32", carried)
        before, after = open_tensors(folder), open_tensors(export)
        assert before.keys() == after.keys()
        assert all(np.array_equal(before[name], after[name]) for name in before)
    transformers("read", references)
    for folder in references.iterdir():
        expected, actual = np.load(folder / "reference.npz"), np.load(folder / "export.npz")
        assert actual["missing_keys"].size == actual["unexpected_keys"].size == 0
        np.testing.assert_array_equal(actual["logits4"], expected["logits4"])
