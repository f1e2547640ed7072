import json

import jax
import numpy as np
import pytest
import safetensors.numpy
from tiny import SIZES, init, make_model, write_config

from learner.mesh import make_mesh, param_shardings
from learner.models.huggingface import (
    check_tensors,
    export_tensors,
    load_params,
    open_tensors,
    param_shapes,
    read_config,
)
from learner.weights import write_tensors
from protocol.config import ConfigError


@pytest.mark.parametrize("tied", [True, False])
def test_round_trip(tmp_path, tied):
    config = write_config(tmp_path, tie_word_embeddings=tied)
    params = init(config)
    write_tensors(tmp_path / "model.safetensors", config, params, "float32")
    jax.tree.map(np.testing.assert_array_equal, params, load_params(config, tmp_path))


def test_the_file_is_read_by_the_safetensors_library(tmp_path):
    config = make_model(tmp_path)
    params = init(config)
    library = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    ours = dict(export_tensors(config, params, "float32"))
    assert library.keys() == ours.keys()
    assert library["model.layers.1.mlp.down_proj.weight"].shape == (32, 64)
    for name, value in ours.items():
        np.testing.assert_array_equal(library[name], value)


@pytest.mark.parametrize("memory", ["device", "pinned_host"])
def test_each_device_gets_its_slice_and_gives_it_back(tmp_path, memory):
    config = make_model(tmp_path)
    mesh = make_mesh("2x4")
    shardings = param_shardings(param_shapes(config), mesh, memory)
    params = load_params(config, tmp_path, shardings)
    jax.tree.map(np.testing.assert_array_equal, params, init(config))
    assert all(jax.tree.leaves(jax.tree.map(lambda x, s: x.sharding == s, params, shardings)))
    kernel = params["layers"]["up_proj"]["kernel"]
    assert {shard.data.shape for shard in kernel.addressable_shards} == {(2, 32, 8)}
    wanted = open_tensors(tmp_path)
    for name, tensor in export_tensors(config, params, "float32"):
        np.testing.assert_array_equal(tensor, wanted[name])


def test_a_shard_that_arrives_changed_is_refused(tmp_path, monkeypatch):
    config = make_model(tmp_path)
    put = jax.device_put
    monkeypatch.setattr(jax, "device_put", lambda x, *a, **k: put(x + (x == x.flat[0]), *a, **k))
    with pytest.raises(ConfigError, match="did not arrive"):
        load_params(config, tmp_path)


def test_a_tensor_in_two_files_is_refused(tmp_path):
    make_model(tmp_path)
    safetensors.numpy.save_file({"model.norm.weight": np.zeros(32, np.float32)}, tmp_path / "more.safetensors")
    with pytest.raises(ConfigError, match="model.norm.weight is in another file"):
        open_tensors(tmp_path)


def test_bfloat16_file_rounds_once(tmp_path):
    config = write_config(tmp_path)
    params = init(config)
    write_tensors(tmp_path / "model.safetensors", config, params, "bfloat16")
    rounded = jax.tree.map(lambda x: x.astype("bfloat16").astype("float32"), params)
    jax.tree.map(np.testing.assert_array_equal, rounded, load_params(config, tmp_path))
    assert open_tensors(tmp_path)["lm_head.weight"].itemsize == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2'"),
        ({"attention_bias": True}, "attention_bias"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rotary scaling"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        write_config(tmp_path, **changes)


def test_a_missing_size_is_named(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in SIZES.items() if k != "hidden_size"}))
    with pytest.raises(ConfigError, match="missing 'hidden_size'"):
        read_config(tmp_path)


def test_weights_that_are_not_the_models_are_refused(tmp_path):
    config = make_model(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = safetensors.numpy.load_file(file)

    def save(**changes):
        left = {name: value for name, value in {**tensors, **changes}.items() if value is not None}
        safetensors.numpy.save_file(left, file)

    save(**{"model.norm.weight": None})
    with pytest.raises(ConfigError, match="model.norm.weight is missing"):
        check_tensors(config, tmp_path)
    save(**{"model.norm.weight": np.zeros(31, np.float32)})
    with pytest.raises(ConfigError, match="which config.json contradicts"):
        check_tensors(config, tmp_path)
    save(**{"model.stranger.weight": np.zeros(3, np.float32)})
    with pytest.raises(ConfigError, match="model.stranger.weight"):
        check_tensors(config, tmp_path)
    save()
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ConfigError, match="not a whole safetensors file"):
        check_tensors(config, tmp_path)
    file.unlink()
    with pytest.raises(ConfigError, match="no weights"):
        check_tensors(config, tmp_path)
