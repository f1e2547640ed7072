"""A run that trains adapters: what it pushes, proves, saves, and refuses to go on from."""

import io
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from rich.console import Console
from tiny import make_config, make_model, write_log

from learner import mesh as meshes
from learner.batches import LogBatches
from learner.export import export, export_adapter
from learner.models.huggingface import load_params, read_config
from learner.step import Step
from learner.train import Trainer
from learner.weights import file_digest
from protocol.config import ConfigError
from rollout_engine.actors.versions import Versions

LORA = {"rank": 4, "alpha": 8.0, "targets": ["q_proj", "down_proj"]}
STEPS = 4


def train(folder, steps=STEPS, lora=LORA, **learner):
    """The announced versions of a run over the log beside it."""
    config = make_config(folder, lora=lora, weights_dtype="bfloat16", steps=STEPS, **learner)
    if not (config.path / "base").exists():
        make_model(config.path / "base")
        write_log(folder / "log.jsonl", STEPS)
    versions = []
    with Trainer(config, LogBatches([folder / "log.jsonl"]), versions.append, Console(file=io.StringIO())) as trainer:
        trainer.run(steps)
    return versions


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return folder, train(folder)


def test_the_base_is_pushed_once_and_then_adapters_alone(whole):
    folder, versions = whole
    assert [(v.form, v.onto) for v in versions] == [("full", None)] + [("adapter", 0)] * STEPS
    assert [v.final for v in versions] == [False] * STEPS + [True]
    assert len({v.complete["model.safetensors"] for v in versions}) == STEPS + 1
    for version in versions[-2:]:
        files = {path.name for path in Path(version.folder).iterdir()}
        assert files == {"adapter_model.safetensors", "adapter_config.json", "version.json"}
    assert json.loads((Path(versions[-1].folder) / "adapter_config.json").read_text())["lora_alpha"] == 8


def test_version_zero_is_the_base_as_it_is_rounded(whole):
    folder, versions = whole
    config = read_config(folder / "tiny/base", param_dtype="bfloat16")
    base = load_params(config, folder / "tiny/base")
    jax.tree.map(np.testing.assert_array_equal, base, load_params(config, versions[0].folder))


def test_what_an_actor_builds_is_what_the_learner_proved_bit_for_bit(whole, tmp_path):
    folder, versions = whole
    actor = Versions(folder / "tiny", tmp_path / "cache", print)
    config = make_config(folder, weights_dtype="bfloat16")
    model = read_config(folder / "tiny/base", param_dtype="bfloat16")
    probes = Step(model, config.learner, meshes.make_mesh("1x1"), load_params(model, folder / "tiny/base"))
    for version in versions[-2:]:
        params = load_params(model, actor.materialise(version))
        ids = np.frombuffer(version.probe.ids, "<i4")
        again = probes.probe(params, ids, "bfloat16")
        np.testing.assert_array_equal(again, np.frombuffer(version.probe.logprobs, "<f4"))
    assert len({v.probe.logprobs for v in versions[-2:]}) == 2


def test_a_checkpoint_holds_adapters_and_a_restart_goes_on_to_the_same_bits(whole, tmp_path):
    folder, versions = whole
    saved = sum(path.stat().st_size for path in (folder / f"tiny/checkpoints/{STEPS}").rglob("*") if path.is_file())
    assert saved < (folder / "tiny/base/model.safetensors").stat().st_size
    train(tmp_path, steps=3)
    shutil.rmtree(tmp_path / "tiny/weights")  # what version 0 was is made again from the base
    again = train(tmp_path)
    assert again[0].version == 3
    assert again[-1].sha256 == versions[-1].sha256 and again[-1].whole == versions[-1].whole
    Versions(tmp_path / "tiny", tmp_path / "cache", print).materialise(again[-1])


def test_a_state_on_another_base_or_under_other_settings_is_refused(whole, tmp_path):
    shutil.copytree(whole[0], tmp_path / "run")
    make_model(tmp_path / "other", initializer_range=1.0)
    other = tmp_path / "other/model.safetensors"
    data = bytearray(other.read_bytes())
    data[-1] ^= 1
    (tmp_path / "run/tiny/base/model.safetensors").write_bytes(data)
    with pytest.raises(ConfigError, match=f"checkpoint {STEPS} holds adapters of another base"):
        train(tmp_path / "run")
    for changed in (None, {**LORA, "alpha": 9.0}, {**LORA, "targets": ["q_proj"]}):
        with pytest.raises(ConfigError, match="under another learning configuration"):
            train(tmp_path / "run", lora=changed)


def test_an_export_is_the_merged_model_or_the_adapter(whole, tmp_path):
    folder, versions = whole
    config = make_config(folder, lora=LORA, weights_dtype="bfloat16", steps=STEPS)
    last, console = versions[-1], Console(file=io.StringIO())
    done = export(config, None, tmp_path / "merged", None, console)
    assert file_digest(done.folder / "model.safetensors") == last.whole["model.safetensors"]
    assert export_adapter(config, None, tmp_path / "adapter") == (tmp_path / "adapter", STEPS)
    assert {name: file_digest(tmp_path / "adapter" / name) for name in last.sha256} == last.sha256
    with pytest.raises(ConfigError, match="has no adapter to export"):
        export_adapter(make_config(folder), None, tmp_path / "none")
