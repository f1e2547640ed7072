import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import init, make_config, make_streams, write_config

from learner.mesh import make_mesh
from learner.packing import pack
from learner.step import Step


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    config = write_config(tmp_path_factory.mktemp("model"))
    return config, init(config)


COMPILED = {}


def step_of(model, tmp_path, mesh="1x1", **learner):
    config, params = model
    key = (config, mesh, str(learner))
    if key not in COMPILED:
        COMPILED[key] = Step(config, make_config(tmp_path, mesh=mesh, **learner).learner, make_mesh(mesh), params)
    step = COMPILED[key]
    # A copy, because an update donates its state.
    return step, step.init(jax.device_put(jax.tree.map(jnp.copy, params), step.params))


def gradients(model, tmp_path, streams, rows=4, row_tokens=64, **learner):
    step, state = step_of(model, tmp_path, **learner)
    grads, sums, tokens = step.gradients(state.params, pack(streams, row_tokens, rows))
    assert tokens == sum(len(s.sampled) for s in streams)
    return jax.device_get(grads), {k: float(v) for k, v in sums._asdict().items()}


def assert_same(a, b):
    for x, y in zip(jax.tree.leaves(a[0]), jax.tree.leaves(b[0]), strict=True):
        assert np.linalg.norm(x - y) <= 1e-5 * np.linalg.norm(x)
    for name, value in a[1].items():
        assert b[1][name] == pytest.approx(value, rel=1e-5, abs=1e-5), name


@pytest.fixture(scope="module")
def reference(model, tmp_path_factory):
    return gradients(model, tmp_path_factory.mktemp("r"), make_streams(13))


@pytest.mark.parametrize(("rows", "row_tokens"), [(1, 64), (2, 200), (2, 256)])
def test_any_microbatch_split_gives_the_same_gradients(model, tmp_path, reference, rows, row_tokens):
    assert_same(reference, gradients(model, tmp_path, make_streams(13), rows, row_tokens))


def test_any_packing_order_gives_the_same_gradients(model, tmp_path, reference):
    streams = make_streams(13)
    shuffled = [streams[i] for i in np.random.default_rng(5).permutation(13)]
    assert_same(reference, gradients(model, tmp_path, shuffled))


@pytest.mark.parametrize("mesh", ["2x1", "2x2", "4x2", "1x8"])
def test_any_device_count_gives_the_same_gradients(model, tmp_path, reference, mesh):
    assert_same(reference, gradients(model, tmp_path, make_streams(13), mesh=mesh))


def test_gradients_and_moments_are_split_like_their_parameters(model, tmp_path):
    step, state = step_of(model, tmp_path, "4x2")
    grads, _, _ = step.gradients(state.params, pack(make_streams(3), 64, 4))
    kernel = state.params["layers"]["gate_proj"]["kernel"]
    assert kernel.addressable_shards[0].data.size == kernel.size // 8
    moment = state.optimizer[0].mu["layers"]["gate_proj"]["kernel"]
    for like in (grads["layers"]["gate_proj"]["kernel"], moment):
        assert like.sharding.is_equivalent_to(kernel.sharding, 3)


def test_nan_behaviour_at_places_without_loss_changes_nothing(model, tmp_path, reference):
    step, state = step_of(model, tmp_path)
    batches = [
        b._replace(
            behaviour=np.where(b.valid, b.behaviour, np.nan),
            weights=np.where(b.valid, b.weights, np.nan),
        )
        for b in pack(make_streams(13), 64, 4)
    ]
    grads, sums, _ = step.gradients(state.params, batches)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(grads), reference[0])
    assert float(sums.loss) == reference[1]["loss"]


def assert_untouched(before, after):
    jax.tree.map(np.testing.assert_array_equal, before, jax.device_get(after))


def test_without_advantage_there_is_no_update(model, tmp_path):
    step, state = step_of(model, tmp_path)
    state, _ = step.update(state, pack(make_streams(5), 64, 4))
    before = jax.device_get(state)
    streams = [s._replace(weights=np.zeros_like(s.weights)) for s in make_streams(5)]
    state, metrics = step.update(state, pack(streams, 64, 4))
    assert metrics == {"applied": 0.0}
    assert_untouched(before, state)
    state, metrics = step.update(state, [])
    assert metrics == {"applied": 0.0}


def test_a_gradient_that_is_not_finite_is_not_applied(model, tmp_path):
    step, state = step_of(model, tmp_path)
    before = jax.device_get(state)
    streams = make_streams(5)
    streams[0].weights[0] = np.inf
    state, metrics = step.update(state, pack(streams, 64, 4))
    assert metrics["applied"] == 0.0 and not np.isfinite(metrics["grad_norm"])
    assert_untouched(before, state)


def test_optimizer_state_and_parameters_in_pinned_host_memory_give_equal_bits(model, tmp_path):
    def run(**learner):
        step, state = step_of(model, tmp_path, **learner)
        for seed in range(3):
            state, _ = step.update(state, pack(make_streams(5, seed), 64, 4))
        return state

    offloaded = run(optimizer={"learning_rate": 1e-2, "memory": "pinned_host"}, param_memory="pinned_host")
    kernel = offloaded.optimizer[0].mu["layers"]["q_proj"]["kernel"]
    assert kernel.sharding.memory_kind == "pinned_host"
    assert offloaded.params["lm_head"].sharding.memory_kind == "pinned_host"
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(run()), jax.device_get(offloaded))


def test_bfloat16_computation_stays_close(model, tmp_path, reference):
    config, params = model
    low = (dataclasses.replace(config, compute_dtype="bfloat16"), params)
    _, sums = gradients(low, tmp_path, make_streams(13))
    assert sums["loss"] == pytest.approx(reference[1]["loss"], rel=0.05, abs=0.2)
    assert sums["loss"] != reference[1]["loss"]


@pytest.mark.parametrize("remat", ["none", "offload"])
def test_what_is_computed_again_changes_no_gradient(model, tmp_path, reference, remat):
    config, params = model
    changed = (dataclasses.replace(config, remat=remat), params)
    assert_same(reference, gradients(changed, tmp_path, make_streams(13)))
