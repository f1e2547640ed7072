"""What fits and what doesn't, and the figures of a run of known size."""

from __future__ import annotations

import dataclasses

import jax
import msgspec
import numpy as np
import pytest
from tiny import SIZES, make_config, write_config

from learner.dry_run import Phase, check_fits, checkpoint_share, measure, with_sizes
from learner.train import read_model
from protocol.config import ConfigError


@pytest.fixture(scope="module")
def need(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dry")
    write_config(folder / "tiny/sizes")
    memory = {"param_memory": "pinned_host", "optimizer": {"memory": "pinned_host"}, "checkpoint_gb": 2e-5}
    types = {"compute_dtype": "bfloat16", "weights_dtype": "bfloat16"}
    return measure(sized(make_config(folder, mesh="2x4", remat="offload", full_push_every=4, **memory, **types)))


def sized(config):
    """``config`` with sizes for want of a model."""
    return msgspec.structs.replace(config, model=msgspec.structs.replace(config.model, sizes=f"{config.path}/sizes"))


def test_every_byte_has_its_place(need):
    accumulate, apply = need.phases["accumulate"], need.phases["apply"]
    # Matrices are split over all eight devices; of the vectors (2 layers' norms, q and k norms, the last) each has all.
    vectors = 2 * (32 + 32 + 8 + 8) + 32
    matrices = need.total_parameters - vectors
    share = matrices // 8 + vectors
    assert need.host["parameters"] == 4 * share and need.host["optimizer"] == 8 * share
    # A node of four devices takes 20 kB of the state at a time, and all processes keep the bfloat16 values pushed.
    assert need.host["a checkpoint on its way"] == 2e4 / 4
    assert need.host["the last version pushed"] == 2 * need.total_parameters // 8
    assert need.host_a_node == 4 * sum(need.host.values())
    assert accumulate.copy == 2 * matrices // 8 + 4 * vectors and apply.copy == 0
    assert accumulate.gradients == apply.gradients == 4 * share
    # Two layers of 64 x 4 tokens in bfloat16, over eight devices.
    assert need.host["layer inputs"] == 2 * 64 * 4 * 32 * 2 // 8
    assert accumulate.parameters == 0 and accumulate.temporaries > 0
    # The counts of Adam and of the schedule stay on the device.
    assert apply.optimizer <= 8
    assert need.peak == max(sum(dataclasses.astuple(phase)) for phase in need.phases.values())


def test_operations_by_hand(need):
    matrices = 2 * (32 * (32 + 16 + 16) + 32 * 32 + 3 * 32 * 64)
    tokens = 4 * 64
    attention = 2 * 32 * 4 * 64**2
    assert need.model_flops == 6 * (tokens * matrices + attention + tokens * 32 * 64)
    # The layers' forward pass is computed again, and the plain attention computes more than the causal half.
    assert need.computed_flops == pytest.approx(need.model_flops * 4 / 3, rel=0.35)


def test_what_does_not_fit_is_named_with_the_ways_out(need, tmp_path):
    check_fits(make_config(tmp_path), need)
    fits = {"device_gb": need.peak / 1e9, "host_gb": need.host_a_node / 1e9}
    check_fits(make_config(tmp_path, **fits), need)
    with pytest.raises(ConfigError, match=r"on a device and learner.device_gb is .*learner.compute_dtype: bfloat16"):
        check_fits(make_config(tmp_path, **fits | {"device_gb": need.peak / 1.1e9}), need)
    fits["host_gb"] = need.host_a_node / 1.1e9
    with pytest.raises(ConfigError, match=r"host_gb is .*mesh, learner.checkpoint_gb, which .*learner.param_memory"):
        check_fits(make_config(tmp_path, **fits), need)
    saving = {"checkpoint_gb": 2e-5, "full_push_every": 4, "weights_dtype": "bfloat16"}
    with pytest.raises(ConfigError, match=r"host_gb is .*mesh, learner.full_push_every: 1, learner.param_memory"):
        check_fits(make_config(tmp_path, **fits, **saving), need)


def test_a_checkpoint_takes_the_largest_parameter_at_least():
    state = jax.device_put([np.zeros(8, np.float32), np.zeros(2, np.float32)], jax.devices()[0])
    assert [checkpoint_share(state, gb, 4) for gb in (None, 1e-9, 144e-9, 1)] == [40, 32, 36, 40]


def test_a_peak_is_the_sum_of_what_is_there():
    assert Phase(1, 2, 4, 8, 16, 32).peak == 63


def test_sizes_stand_in_until_the_model_is_there(tmp_path):
    write_config(tmp_path / "tiny/sizes")
    config = sized(make_config(tmp_path))
    stand_in, used = with_sizes(config)
    assert used == tmp_path / "tiny/sizes" and read_model(stand_in).hidden_size == SIZES["hidden_size"]
    write_config(tmp_path / "tiny/base")
    assert with_sizes(config) == (config, None)


def test_offloading_takes_the_state_off_the_device(need, tmp_path):
    """But for a layer, or a parameter, at a time."""
    write_config(tmp_path / "tiny/sizes")
    there = measure(sized(make_config(tmp_path, mesh="2x4", compute_dtype="bfloat16")))
    offloaded, resident = need.phases["apply"], there.phases["apply"]
    state = need.host["parameters"] + need.host["optimizer"]
    assert resident.parameters + resident.optimizer == state + offloaded.optimizer
    assert resident.moved == 0 and 0 < offloaded.moved < state
    assert resident.peak - offloaded.peak == state - offloaded.moved
    # All of it is copied when it is saved, with the counts of Adam and of the schedule.
    assert there.host == {**dict.fromkeys(need.host, 0), "a checkpoint on its way": state + offloaded.optimizer}
