"""What the learner pushes of adapters, and that an actor makes the learner's own merged weights of it."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file
from tiny import HYBRID, write_config

from learner import mesh as meshes
from learner.adapter_files import write_adapter
from learner.lora import adapter_parameters
from learner.merge import merged_params, pushed_adapters
from learner.models.huggingface import param_shapes
from learner.models.parameters import shapes
from learner.weights import write_tensors
from protocol import adapter
from protocol.config import LoRA
from rollout_engine.actors.adapter import merge_files

LORA = LoRA(rank=6, alpha=10.0, targets="gdn_hybrid")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """(folder, model, declarations, the base as it is pushed, adapters that have learnt something), on four devices."""
    folder = tmp_path_factory.mktemp("run")
    config = write_config(folder / "base", **HYBRID, num_hidden_layers=4)
    frozen = dataclasses.replace(config, param_dtype="bfloat16")
    mesh = meshes.make_mesh("2x2")
    declared = adapter_parameters(config, LORA)
    rng = np.random.default_rng(0)

    def random(tree):
        values = jax.tree.map(lambda x: rng.normal(0, 0.05, x.shape).astype(x.dtype), tree)
        return jax.device_put(values, meshes.param_shardings(values, mesh))

    return folder, config, declared, random(param_shapes(frozen)), random(shapes(declared, "float32"))


def test_an_actor_builds_the_learners_merged_weights_bit_for_bit(run, tmp_path):
    _, config, declared, base, adapters = run
    for folder in ("v000000", "v000001", "built", "whole"):
        (tmp_path / folder).mkdir()
    name = "model.safetensors"
    write_tensors(tmp_path / "v000000" / name, config, base, "bfloat16")
    pushed = pushed_adapters(adapters, LORA.rank)
    write_adapter(tmp_path / "v000001", declared, pushed, LORA, "base")
    merge_files(tmp_path / "v000000", tmp_path / "v000001", tmp_path / "built")
    merged = merged_params(base, pushed, LORA.scale)
    write_tensors(tmp_path / "whole" / name, config, merged, "bfloat16")
    built = (tmp_path / "built" / name).read_bytes()
    assert built == (tmp_path / "whole" / name).read_bytes()
    assert built != (tmp_path / "v000000" / name).read_bytes()


def test_the_folder_is_one_that_peft_reads(run, tmp_path):
    _, config, declared, _, adapters = run
    pushed = pushed_adapters(adapters, LORA.rank)
    digests = write_adapter(tmp_path, declared, pushed, LORA, "base")
    assert digests.keys() == {"adapter_model.safetensors", "adapter_config.json"}
    settings = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (settings["peft_type"], settings["r"], settings["lora_alpha"]) == ("LORA", 6, 10)
    assert set(settings["target_modules"]) == set(LORA.modules)
    tensors = load_file(tmp_path / adapter.WEIGHTS)
    layer = "base_model.model.model.layers.3.self_attn.q_proj"
    a, b = tensors[f"{layer}.lora_A.weight"], tensors[f"{layer}.lora_B.weight"]
    pair = pushed["layers"]["full_attention"]["q_proj"]
    np.testing.assert_array_equal(a.T, pair["lora_a"][1])
    np.testing.assert_array_equal(b.T, pair["lora_b"][1])
    np.testing.assert_allclose(a.T, adapters["layers"]["full_attention"]["q_proj"]["lora_a"][1], atol=1e-7)
    assert len(tensors) == 2 * (2 * 5 + 2 * 4 + 4 * 3)
