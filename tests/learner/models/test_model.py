"""The Flax module holds what the family declares."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from flax.errors import ScopeParamShapeError

from learner.layout import Work
from learner.models.huggingface import param_shapes, read_config
from learner.models.model import Model
from tests.learner.tiny import write_config


def test_the_module_initialises_the_declared_tree(tmp_path):
    write_config(tmp_path)
    config = read_config(tmp_path)
    row = jnp.ones((1, 8), jnp.int32)
    made = jax.eval_shape(Model(config).init, jax.random.key(0), row, row, row)
    declared = param_shapes(config)
    assert jax.tree.structure(made["params"]) == jax.tree.structure(declared)
    assert jax.tree.leaves(made["params"]) == jax.tree.leaves(declared)


def test_a_tree_of_other_shapes_is_refused(tmp_path):
    write_config(tmp_path)
    config = read_config(tmp_path)
    row = jnp.ones((1, 8), jnp.int32)
    params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), param_shapes(config))
    params["embed_tokens"] = params["embed_tokens"][:, :-1]
    with pytest.raises(ScopeParamShapeError, match="embed_tokens"):
        Model(config).apply({"params": params}, row, row, row)


HYBRID_27B = {
    "model_type": "qwen3_5_text",
    "hidden_size": 5120,
    "intermediate_size": 17_408,
    "num_hidden_layers": 64,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 248_320,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
}


def test_the_work_of_a_forward_pass(tmp_path):
    """What the plan of an update and the utilisation of devices go by."""
    layer = 32 * (32 + 2 * 16 + 32) + 3 * 32 * 64
    assert write_config(tmp_path).work() == Work(token=2 * layer, pair=2 * 4 * 8, place=32 * 64, skips=False)

    work = write_config(tmp_path, **HYBRID_27B).work()
    mlp = 64 * 3 * 5120 * 17_408
    full = 16 * 5120 * 256 * (2 * 24 + 2 * 4 + 24)
    linear = 48 * (5120 * (2 * 16 + 3 * 48) * 128 + 2 * 5120 * 48 + (2 * 16 + 48) * 128 * 4)
    recurrence = 48 * 3 * 48 * 128 * 128
    assert work == Work(mlp + full + linear + recurrence, 16 * 24 * 256, 5120 * 248_320, skips=False)
    assert work.token + 2 * work.place == pytest.approx(27e9, rel=0.02)
