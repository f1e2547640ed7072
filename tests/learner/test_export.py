"""A checkpoint as a Hugging Face folder: what it holds, on any mesh, or an error that names what differs."""

from __future__ import annotations

import io
from functools import partial

import jax
import ml_dtypes
import numpy as np
import pytest
from rich.console import Console
from tiny import init, make_config, make_model

from learner import export as exporting
from learner.checkpoint import Checkpoints
from learner.errors import ExportFailed
from learner.mesh import make_mesh
from learner.models.huggingface import load_params
from learner.retention import Retention
from learner.step import Step
from protocol.config import ConfigError
from protocol.versions import read_record

QUIET = Console(file=io.StringIO())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """(configuration, model, parameters of checkpoint 2, on the host); checkpoint 1 holds others."""
    config = make_config(tmp_path_factory.mktemp("runs"), mesh="2x4", weights_dtype="bfloat16")
    model = make_model(config.path / "base")
    (config.path / "base/tokenizer.json").write_text("{}")
    (config.path / "base/chat_template.jinja").write_text("hello")
    step = Step(model, config.learner, make_mesh("1x1"), init(model))
    saved = Checkpoints(config.path / "checkpoints", Retention(3), lambda step: "f", QUIET)
    params = jax.device_get(init(model, seed=5))
    for number, scale in ((1, 0.5), (2, 1.0)):
        scaled = jax.tree.map(partial(np.multiply, np.float32(scale)), params)
        state = step.init(jax.device_put(scaled, step.params))
        saved.save(number, state, {"probe": list(range(3, 40))})
    saved.close()
    return config, model, params


def test_the_last_checkpoint_is_exported_whole_from_another_mesh_than_it_was_saved_on(tmp_path, run):
    config, model, params = run
    done = exporting.export(config, None, tmp_path / "out", None, QUIET)
    assert (done.folder, done.step) == (tmp_path / "out", 2)
    assert 0 < done.difference < 0.01
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert sorted(p.name for p in done.folder.iterdir()) == [
        "chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json", "version.json"
    ]  # fmt: skip
    rounded = jax.tree.map(lambda x: x.astype(ml_dtypes.bfloat16).astype(np.float32), params)
    jax.tree.map(np.testing.assert_array_equal, rounded, jax.device_get(load_params(model, done.folder)))
    assert read_record(done.folder).version == 2


def test_another_step_in_float32_loses_nothing(tmp_path, run):
    config, model, params = run
    done = exporting.export(config, 1, tmp_path / "out", "float32", QUIET)
    assert (done.step, done.difference) == (1, 0.0)
    halved = jax.tree.map(lambda x: x * 0.5, params)
    jax.tree.map(np.testing.assert_array_equal, halved, jax.device_get(load_params(model, done.folder)))


@pytest.mark.parametrize("damage", ["bit", "renamed"])
def test_a_folder_that_is_not_the_checkpoint_is_named_and_does_not_appear(tmp_path, run, monkeypatch, damage):
    config = run[0]
    written = exporting.WeightStore.write

    def damaged(self, *args):
        record = written(self, *args)
        file = self.folder / "v000002" / "model.safetensors"
        data = bytearray(file.read_bytes())
        if damage == "bit":
            data[-1] ^= 1
        else:
            data = data.replace(b"layers.1.mlp.up_proj", b"layers.7.mlp.up_proj")
        file.write_bytes(data)
        return record

    monkeypatch.setattr(exporting.WeightStore, "write", damaged)
    last = "model.norm.weight" if damage == "bit" else "model.layers.1.mlp.up_proj.weight"
    said = "differs by" if damage == "bit" else "is missing"
    with pytest.raises(ExportFailed, match=f"model.safetensors has sha256 .*; tensor .*{last} {said}"):
        exporting.export(config, None, tmp_path / "out", None, QUIET)
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_computes_otherwise_is_refused(tmp_path, run, monkeypatch):
    """Its tensors are right, and what is loaded from them isn't."""
    config = run[0]
    loaded = exporting.load_params
    monkeypatch.setattr(exporting, "load_params", lambda *args: jax.tree.map(lambda x: x * 1.5, loaded(*args)))
    with pytest.raises(ExportFailed, match="log-probabilities differ from the checkpoint's by"):
        exporting.export(config, None, tmp_path / "out", None, QUIET)
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_there_is_named(tmp_path, run):
    config = run[0]
    with pytest.raises(ConfigError, match="no checkpoint of step 7; it has those of 1, 2"):
        exporting.export(config, 7, tmp_path / "out", None, QUIET)
    with pytest.raises(ConfigError, match="holds no checkpoint: nothing to export"):
        exporting.export(make_config(tmp_path), None, tmp_path / "out", None, QUIET)
    with pytest.raises(ConfigError, match="is there already"):
        exporting.export(config, None, tmp_path, None, QUIET)


def test_a_checkpoint_that_cannot_be_read_is_named(tmp_path, run):
    config = run[0]
    (config.path / "checkpoints/9").mkdir()
    try:
        with pytest.raises(ConfigError, match="checkpoints/9 can't be read"):
            exporting.export(config, None, tmp_path / "out", None, QUIET)
    finally:
        (config.path / "checkpoints/9").rmdir()
