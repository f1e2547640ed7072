"""Adapters: what they are declared as, what is trained of them, and what they make of their base."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import HYBRID, init, make_config, make_streams, write_config

from learner import mesh as meshes
from learner.lora import adapter_parameters, init_adapters, scaled
from learner.merge import merged_params, pushed_adapters
from learner.models.huggingface import param_shapes
from learner.models.parameters import shapes
from learner.packing import pack
from learner.step import Step, sampled_logprobs
from protocol.config import ConfigError, LoRA

DENSE = {"hidden_size": 40, "intermediate_size": 48, "vocab_size": 80}
"""No two dimensions are alike, so that a product's shape tells what it is of."""
LORA = LoRA(rank=4, alpha=6.0, targets=("q_proj", "down_proj"))


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    return write_config(tmp_path_factory.mktemp("dense"), **DENSE)


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory):
    return write_config(tmp_path_factory.mktemp("hybrid"), **HYBRID)


def names(config, **lora):
    tree = adapter_parameters(config, LoRA(**lora))
    return {name for parameter in jax.tree.leaves(tree) for name in parameter.names}


def test_an_adapter_is_declared_by_its_layers_declaration(dense):
    tree = adapter_parameters(dense, LoRA(rank=4))
    layers = dense.layer_parameters()
    assert tree["layers"].keys() == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    for name, pair in tree["layers"].items():
        inputs, outputs = layers[name]["kernel"].shape
        assert (pair["lora_a"].stacked_shape, pair["lora_b"].stacked_shape) == ((2, inputs, 4), (2, 4, outputs))
    assert tree["layers"]["v_proj"]["lora_a"].names[1] == (
        "base_model.model.model.layers.1.self_attn.v_proj.lora_A.weight"
    )


def test_the_hybrid_set_adds_the_delta_nets_projections_and_freezes_the_rest(hybrid):
    both = names(hybrid, targets="gdn_hybrid")
    modules = {name.split("layers.")[1].rsplit(".lora_")[0] for name in both}
    delta = {f"0.linear_attn.{name}" for name in ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj")}
    attention = {f"1.self_attn.{name}_proj" for name in "qkvo"}
    mlp = {f"{layer}.mlp.{name}_proj" for layer in (0, 1) for name in ("gate", "up", "down")}
    assert modules == delta | attention | mlp
    assert names(hybrid, targets="attention_mlp") == {name for name in both if "linear_attn" not in name}


def test_the_prefix_of_a_multimodal_folder_is_in_the_names(hybrid):
    multimodal = dataclasses.replace(hybrid, prefix="model.language_model.")
    assert "base_model.model.model.language_model.layers.0.linear_attn.out_proj.lora_B.weight" in names(
        multimodal, targets=("out_proj",)
    )


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ("gdn_hybrid", "has no gated delta net, so none of in_proj_qkv, .*; it has down_proj, gate_proj"),
        (("q_proj", "q_prj"), "has no linear layer q_prj; it has down_proj"),
        (("lm_head",), "has no linear layer lm_head"),
        (("q_norm",), "has no linear layer q_norm"),
    ],
)
def test_a_target_that_the_model_lacks_is_refused(dense, targets, message):
    with pytest.raises(ConfigError, match=message):
        adapter_parameters(dense, LoRA(targets=targets))


def start(config, mesh, lora=LORA, seed=0):
    tree = adapter_parameters(config, lora)
    return init_adapters(tree, "float32", seed, meshes.param_shardings(shapes(tree, "float32"), mesh))


def test_the_start_is_the_seeds_on_any_mesh_and_its_product_is_nothing(dense):
    one, four = start(dense, meshes.make_mesh("1x1")), start(dense, meshes.make_mesh("2x2"))
    other = start(dense, meshes.make_mesh("1x1"), seed=1)
    jax.tree.map(np.testing.assert_array_equal, one, four)
    a = four["layers"]["down_proj"]["lora_a"]
    assert not np.array_equal(a, other["layers"]["down_proj"]["lora_a"])
    assert a.addressable_shards[0].data.size == a.size // 4
    assert not any(x.any() for x in jax.tree.leaves(jax.tree.map(lambda p: p["lora_b"], one["layers"], is_leaf=_pair)))
    assert np.std(a) == pytest.approx((3 * 48) ** -0.5, rel=0.1)


def _pair(node):
    return "lora_a" in node


def random(adapters, seed=1):
    """Adapters whose B isn't zero, so that there is something to see."""
    leaves, tree = jax.tree.flatten(adapters)
    rng = np.random.default_rng(seed)
    return jax.tree.unflatten(
        tree, [jax.device_put(rng.normal(0, 0.1, x.shape).astype(np.float32), x.sharding) for x in leaves]
    )


COMPILED = {}


def lora_step(config, folder, mesh="1x1", lora=LORA, **learner):
    key = (config, mesh, lora, str(learner))
    if key not in COMPILED:
        config_section = make_config(folder, mesh=mesh, lora=section(lora), **learner).learner
        tree = shapes(adapter_parameters(config, lora), "float32")
        COMPILED[key] = step = Step(config, config_section, meshes.make_mesh(mesh), tree)
        step.base = jax.device_put(init(config), meshes.param_shardings(param_shapes(config), step.mesh))
    return COMPILED[key], random(start(config, COMPILED[key].mesh, lora))


def section(lora):
    return {"rank": lora.rank, "alpha": lora.alpha, "targets": lora.targets}


def lora_gradients(config, folder, rows=4, row_tokens=64, **settings):
    step, adapters = lora_step(config, folder, **settings)
    grads, sums, _ = step.gradients(adapters, pack(make_streams(13), row_tokens, rows))
    return jax.device_get(grads), float(sums.loss)


@pytest.fixture(scope="module")
def reference(dense, tmp_path_factory):
    return lora_gradients(dense, tmp_path_factory.mktemp("r"))


@pytest.fixture(scope="module")
def full(dense, tmp_path_factory):
    """The step that trains all parameters."""
    learner = make_config(tmp_path_factory.mktemp("full")).learner
    return Step(dense, learner, meshes.make_mesh("1x1"), param_shapes(dense))


def test_gradients_are_those_of_the_merged_matrices_by_the_chain_rule(dense, tmp_path, reference, full):
    step, adapters = lora_step(dense, tmp_path)
    actual, loss = reference
    merged = merged_params(step.base, jax.device_get(adapters), LORA.scale)
    grads, sums, _ = full.gradients(merged, pack(make_streams(13), 64, 4))
    wanted = jax.device_get(grads)
    assert loss == pytest.approx(float(sums.loss), rel=1e-5)

    def check(pair, grads, kernel):
        """Of y = x W + s (x A) B: dA = s dW B^T, dB = s A^T dW."""
        a, b = (np.asarray(pair[name], np.float64) for name in ("lora_a", "lora_b"))
        expected = LORA.scale * kernel @ b.swapaxes(1, 2), LORA.scale * a.swapaxes(1, 2) @ kernel
        for name, value in zip(("lora_a", "lora_b"), expected, strict=True):
            assert np.linalg.norm(grads[name] - value) <= 2e-5 * np.linalg.norm(value)

    checked = 0
    for path, pair in jax.tree_util.tree_leaves_with_path(adapters, is_leaf=_pair):
        grads, kernel = actual, wanted
        for key in path:
            grads, kernel = grads[key.key], kernel[key.key]
        check(pair, grads, kernel["kernel"])
        checked += 1
    assert checked == len(LORA.modules)


def test_the_hybrids_layers_compute_with_the_term_what_they_would_merged(hybrid):
    lora = LoRA(rank=4, alpha=6.0, targets="gdn_hybrid")
    base, adapters = init(hybrid), random(start(hybrid, meshes.make_mesh("1x1"), lora))
    merged = merged_params(base, jax.device_get(adapters), lora.scale)
    batch = pack(make_streams(1), 64, 1)[0]

    @jax.jit
    def logprobs(params, adapters):
        return sampled_logprobs(params, batch, hybrid, 64, 1.0, adapters)[0]

    actual, nothing = logprobs(base, scaled(adapters, lora.scale)), jax.tree.map(jnp.zeros_like, adapters)
    np.testing.assert_allclose(actual, logprobs(merged, nothing), atol=2e-4)
    assert np.abs(actual - logprobs(base, nothing)).max() > 0.1


def test_another_split_packing_and_mesh_give_the_same_gradients(dense, tmp_path, reference):
    grads, loss = lora_gradients(dense, tmp_path, rows=2, row_tokens=200, mesh="2x2")
    assert loss == pytest.approx(reference[1], rel=1e-5)
    for x, y in zip(jax.tree.leaves(reference[0]), jax.tree.leaves(grads), strict=True):
        assert np.linalg.norm(x - y) <= 1e-5 * np.linalg.norm(x)


def products(step, trained) -> set[tuple[int, ...]]:
    """The shapes, each sorted, of the matrix products in the compiled gradient."""
    grads, sums = step._zeros()
    batch = step.put(pack(make_streams(13), 64, 4)[0])
    with jax.set_mesh(step.mesh):
        program = step.accumulate.lower(trained, grads, sums, batch, np.float32(1), step.base).compile().as_text()
    found = re.findall(r"= \w+\[([\d,]+)\]\S* dot\(", program)
    return {tuple(sorted(int(n) for n in shape.split(",") if n != "1")) for shape in found}


def test_no_gradient_of_the_base_is_computed(dense, tmp_path, full):
    matrices = {tuple(sorted(p.shape)) for p in jax.tree.leaves(dense.parameters()) if len(p.shape) == 2}
    # The embedding's gradient is a scatter, and has the head's shape.
    assert products(full, init(dense)) >= matrices
    step, adapters = lora_step(dense, tmp_path)
    assert not products(step, adapters) & matrices


def test_merging_is_the_sum_in_the_bases_dtype_and_sharding(dense, tmp_path):
    mesh = meshes.make_mesh("2x2")
    adapters = random(start(dense, mesh))
    low = dataclasses.replace(dense, param_dtype="bfloat16")
    base = jax.device_put(init(low), meshes.param_shardings(param_shapes(low), mesh))
    pushed = pushed_adapters(adapters, LORA.rank)
    merged = merged_params(base, pushed, LORA.scale)
    for name in ("q_proj", "down_proj"):
        kernel, pair = base["layers"][name]["kernel"], adapters["layers"][name]
        new = merged["layers"][name]["kernel"]
        assert (new.dtype, new.sharding) == (kernel.dtype, kernel.sharding)
        wanted = kernel.astype(jnp.float32) + LORA.scale * pair["lora_a"] @ pair["lora_b"]
        np.testing.assert_allclose(new.astype(jnp.float32), wanted, rtol=2**-8, atol=1e-6)
    assert merged["layers"]["k_proj"]["kernel"] is base["layers"]["k_proj"]["kernel"]
    assert merged["lm_head"] is base["lm_head"]
    whole = merged_params(jax.device_put(base, jax.devices()[0]), pushed, LORA.scale)
    jax.tree.map(np.testing.assert_array_equal, whole, merged)


def test_version_zero_is_the_base(dense):
    mesh = meshes.make_mesh("1x1")
    base = init(dense)
    merged = merged_params(base, pushed_adapters(start(dense, mesh), LORA.rank), LORA.scale)
    jax.tree.map(np.testing.assert_array_equal, base, merged)
