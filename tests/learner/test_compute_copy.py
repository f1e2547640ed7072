"""Copies to compute with, and how much is on its way from and to host memory at a time."""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import HYBRID, make_config, write_config

from learner.compute_copy import ComputeCopy
from learner.mesh import make_mesh
from learner.models.huggingface import param_shapes
from learner.step import Step


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory):
    return write_config(tmp_path_factory.mktemp("hybrid"), **HYBRID, num_hidden_layers=6)


def random_params(model):
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32), param_shapes(model))


def test_matrices_are_copied_in_the_compute_dtype_and_vectors_stay_float32(hybrid):
    params = random_params(hybrid)
    copy = ComputeCopy(params, make_mesh("1x1"), "bfloat16", "device")(params)
    layers = copy["layers"]["linear_attention"]
    for matrix in (
        copy["embed_tokens"],
        copy["lm_head"],
        layers["in_proj_qkv"]["kernel"],
        layers["in_proj_b"]["kernel"],
    ):
        assert matrix.dtype == jnp.bfloat16
    for vector in (
        copy["norm"]["scale"],
        layers["A_log"],
        layers["dt_bias"],
        layers["conv1d"],
        layers["norm"]["scale"],
    ):
        assert vector.dtype == jnp.float32
    np.testing.assert_array_equal(layers["A_log"], params["layers"]["linear_attention"]["A_log"])
    np.testing.assert_array_equal(copy["lm_head"], params["lm_head"].astype(jnp.bfloat16))


def test_a_copy_that_would_be_the_same_is_the_parameters_themselves(hybrid):
    params = random_params(hybrid)
    copy = ComputeCopy(params, make_mesh("1x1"), "float32", "device")
    assert copy(params) is params and copy(params, rounded="float32") is params
    rounded = copy(params, rounded="bfloat16")["norm"]["scale"]
    assert rounded.dtype == jnp.float32
    np.testing.assert_array_equal(rounded, params["norm"]["scale"].astype(jnp.bfloat16).astype(jnp.float32))


def moved(jaxpr):
    """Shapes of what is put on the device from host memory, anywhere in a program."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "device_put":
            for before, after in zip(equation.invars, equation.outvars, strict=True):
                kinds = (before.aval.memory_space, after.aval.memory_space)
                if kinds == (jax.memory.Space.Host, jax.memory.Space.Device):
                    yield before.aval.shape
        for parameter in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "jaxpr")):
            if hasattr(parameter, "jaxpr"):
                yield from moved(parameter.jaxpr)


def test_one_layer_at_a_time_leaves_host_memory(hybrid, tmp_path):
    memory = {"param_memory": "pinned_host", "optimizer": {"memory": "pinned_host"}}
    learner = make_config(tmp_path, mesh="2x4", compute_dtype="bfloat16", **memory).learner
    shapes = param_shapes(hybrid)
    step = Step(hybrid, learner, make_mesh("2x4"), shapes)
    state = step.abstract_state(shapes)
    grads = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32, sharding=x.sharding), step.copy.shapes)
    leaves = jax.tree.leaves(shapes)
    layers = sorted(leaf.shape[1:] for leaf in jax.tree.leaves(shapes["layers"]))
    others = sorted(leaf.shape for name, tree in shapes.items() if name != "layers" for leaf in jax.tree.leaves(tree))
    with jax.set_mesh(step.mesh):
        copied = sorted(moved(jax.make_jaxpr(partial(step.copy.make, rounded=None))(state.params).jaxpr))
        applied = sorted(moved(jax.make_jaxpr(step.apply)(state, grads).jaxpr))
    assert copied == sorted(layers + others)
    assert applied == sorted(3 * (layers + others))
    assert sum(map(math.prod, copied)) < sum(math.prod(leaf.shape) for leaf in leaves)
