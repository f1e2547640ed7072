"""A base's files and an adapter's make complete weight files, byte for byte those of the merged model."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from protocol import adapter
from protocol.records import PolicyVersion, Probe
from protocol.versions import folder_name
from rollout_engine.actors import adapter as merging
from rollout_engine.actors.adapter import merge_files
from rollout_engine.actors.digests import WeightsDamaged
from rollout_engine.actors.versions import Versions

BF16 = ml_dtypes.bfloat16
UP, DOWN = "model.layers.0.mlp.up_proj", "model.layers.1.mlp.down_proj"
SCALE = 6.0 / 4


class Scene:
    """A base of two files in two dtypes, an adapter of two of its tensors, and the complete files of both."""

    def __init__(self, run: Path):
        self.base, self.folder = run / "weights" / folder_name(0), run / "weights" / folder_name(3)
        rng = np.random.default_rng(0)

        def normal(*shape: int, dtype=np.float32) -> np.ndarray:
            return rng.normal(size=shape).astype(dtype)

        self.files = {
            "model-00001-of-00002.safetensors": {
                f"{UP}.weight": normal(24, 10, dtype=BF16),
                "model.norm.weight": normal(10, dtype=BF16),
            },
            "model-00002-of-00002.safetensors": {
                f"{DOWN}.weight": normal(10, 24),
                "model.visual.counts": np.arange(5),
            },
        }
        self.factors = {}
        for module, (outputs, inputs) in {UP: (24, 10), DOWN: (10, 24)}.items():
            self.factors |= {
                f"{adapter.PREFIX}{module}{adapter.A}": adapter.on_grid(normal(4, inputs), 4),
                f"{adapter.PREFIX}{module}{adapter.B}": adapter.on_grid(normal(outputs, 4), 4),
            }
        self.base.mkdir(parents=True)
        self.folder.mkdir()
        for name, tensors in self.files.items():
            save_file(tensors, self.base / name)
        (self.base / "tokenizer.json").write_text("{}")
        self.write_adapter()

    def write_adapter(self, **settings) -> None:
        save_file(self.factors, self.folder / adapter.WEIGHTS)
        (self.folder / adapter.CONFIG).write_text(json.dumps({"r": 4, "lora_alpha": 6.0, **settings}))

    def merged(self) -> dict[str, dict[str, np.ndarray]]:
        out = {name: dict(tensors) for name, tensors in self.files.items()}
        for tensors in out.values():
            for module in (UP, DOWN):
                if (base := tensors.get(f"{module}.weight")) is not None:
                    a, b = (self.factors[f"{adapter.PREFIX}{module}{end}"] for end in (adapter.A, adapter.B))
                    whole = adapter.merged(base.astype(np.float32), a, b, SCALE)
                    tensors[f"{module}.weight"] = whole.astype(base.dtype)
        return out

    def announced(self) -> PolicyVersion:
        """With the digests of files written by another library than the merge."""
        complete = self.folder.with_name("complete")
        complete.mkdir(exist_ok=True)
        for name, tensors in self.merged().items():
            save_file(tensors, complete / name)
        return PolicyVersion(
            "r",
            3,
            f"weights/{self.folder.name}",
            digests(self.folder, adapter.WEIGHTS, adapter.CONFIG),
            Probe(b"", b"", 0.05),
            form="adapter",
            onto=0,
            whole=digests(complete, *self.files),
        )


def digests(folder: Path, *names: str) -> dict[str, str]:
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}


@pytest.fixture
def scene(tmp_path) -> Scene:
    return Scene(tmp_path)


@pytest.fixture
def actor(tmp_path) -> Versions:
    return Versions(tmp_path, tmp_path / "cache", print)


def test_a_version_is_the_merged_model_digest_for_digest(scene, actor):
    folder = actor.materialise(scene.announced())
    assert sorted(path.name for path in folder.iterdir()) == [*scene.files, "tokenizer.json"]
    for name, tensors in scene.merged().items():
        for tensor, value in load_file(folder / name).items():
            np.testing.assert_array_equal(value, tensors[tensor])
    assert actor.materialise(scene.announced()) == folder


def test_a_matrix_of_many_blocks_is_merged_alike(scene, actor, monkeypatch):
    monkeypatch.setattr(merging, "BLOCK", 33)
    actor.materialise(scene.announced())


def test_what_was_merged_and_damaged_is_merged_again(scene, actor):
    folder = actor.materialise(scene.announced())
    name = next(iter(scene.files))
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[:-1] + b"?")
    assert (actor.materialise(scene.announced()) / name).read_bytes() == whole


def test_damaged_adapters_and_bases_are_refused(scene, actor):
    version = scene.announced()
    scene.factors[f"{adapter.PREFIX}{UP}{adapter.B}"][0, 0] += 1
    scene.write_adapter()
    with pytest.raises(WeightsDamaged, match="adapter_model.safetensors has sha256"):
        actor.materialise(version)
    save_file(scene.merged()[name := next(iter(scene.files))], scene.base / name)
    with pytest.raises(WeightsDamaged, match=f"{name} has sha256"):
        actor.materialise(scene.announced())
    for file in scene.base.glob("*"):
        file.unlink()
    with pytest.raises(WeightsDamaged, match="v000000 holds no"):
        actor.materialise(scene.announced())
    scene.base.rmdir()
    with pytest.raises(WeightsDamaged, match="which the adapter of version 3 goes onto, is not there"):
        actor.materialise(scene.announced())


def extra(scene):
    scene.factors |= {f"{adapter.PREFIX}lm_head{end}": np.ones((4, 4), np.float32) for end in (adapter.A, adapter.B)}


def misshapen(scene):
    scene.factors[f"{adapter.PREFIX}{UP}{adapter.B}"] = np.ones((23, 4), np.float32)


def half(scene):
    del scene.factors[f"{adapter.PREFIX}{UP}{adapter.B}"]


def whole_numbers(scene):
    for end in (adapter.A, adapter.B):
        scene.factors[f"{adapter.PREFIX}{UP}{end}"] = scene.factors[f"{adapter.PREFIX}{UP}{end}"].astype(np.int32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (extra, "terms for 1 tensors that .* lacks, first lm_head.weight"),
        (misshapen, r"up_proj.weight is \[24, 10\], its low-rank term \[23, 10\]"),
        (half, "not pairs of lora_A and lora_B"),
        (whole_numbers, "dtype I32 can't be merged"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(scene, tmp_path, change, message):
    change(scene)
    scene.write_adapter()
    with pytest.raises(WeightsDamaged, match=message):
        merge_files(scene.base, scene.folder, tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"), [({"r": 0}, "is no adapter: ZeroDivisionError"), ({"r": "4"}, "TypeError")]
)
def test_settings_that_make_no_scale_are_refused(scene, tmp_path, settings, message):
    scene.write_adapter(**settings)
    with pytest.raises(WeightsDamaged, match=message):
        merge_files(scene.base, scene.folder, tmp_path)


def test_files_that_are_cut_or_missing_are_refused(scene, tmp_path):
    file = scene.folder / adapter.WEIGHTS
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(WeightsDamaged, match="ends beyond the file"):
        merge_files(scene.base, scene.folder, tmp_path)
    file.unlink()
    with pytest.raises(WeightsDamaged, match="can't be read as an adapter: No such file"):
        merge_files(scene.base, scene.folder, tmp_path)
