"""The Flax module holds what the family declares."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from flax.errors import ScopeParamShapeError

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
