import hashlib
import json
import math
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from tiny import init, make_model, write_config

from learner.mesh import make_mesh, param_shardings
from learner.models.family import ModelConfig
from learner.models.huggingface import load_params, open_tensors, param_shapes
from learner.models.parameters import Parameter
from learner.push import relay
from learner.weights import WeightStore
from protocol.config import ConfigError
from protocol.records import PolicyVersion, Probe
from protocol.versions import read_record
from rollout_engine.actors.versions import Versions

PROBE = Probe(b"", b"", 0.05)


@pytest.fixture
def base(tmp_path):
    config = make_model(tmp_path / "base")
    (tmp_path / "base/tokenizer.json").write_text("{}")
    (tmp_path / "base/chat_template.jinja").write_text("hello")
    (tmp_path / "base/demonstrations.npz").write_text("not for the actors")
    return config, tmp_path / "base"


def test_a_version_is_a_whole_model_folder_and_its_digest_is_of_the_bytes(tmp_path, base):
    config, folder = base
    params = init(config, seed=3)
    version = WeightStore(tmp_path / "weights", folder, "float32", keep=2).write("tiny", 7, params, PROBE, final=True)
    place = Path(version.folder)
    assert place.is_absolute() and place.name == "v000007"
    assert sorted(p.name for p in place.iterdir()) == [
        "chat_template.jinja",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "version.json",
    ]
    assert read_record(place) == version
    digest = hashlib.sha256((place / "model.safetensors").read_bytes()).hexdigest()
    assert version.sha256 == {"model.safetensors": digest}
    assert (version.version, version.final) == (7, True)
    jax.tree.map(np.testing.assert_array_equal, params, load_params(config, place))


def test_version_zero_and_the_last_few_are_kept(tmp_path, base):
    config, folder = base
    store = WeightStore(tmp_path / "weights", folder, "bfloat16", keep=2)
    (tmp_path / "weights/.v000001.99.part").mkdir()  # what a killed learner leaves
    for version in range(5):
        store.write("tiny", version, init(config), PROBE)
    assert sorted(p.name for p in (tmp_path / "weights").iterdir()) == ["v000000", "v000003", "v000004"]


def test_writing_a_version_again_replaces_it(tmp_path, base):
    config, folder = base
    store = WeightStore(tmp_path / "weights", folder, "float32", keep=2)
    first = store.write("tiny", 1, init(config), PROBE)
    assert store.write("tiny", 1, init(config), PROBE).sha256 == first.sha256
    other = store.write("tiny", 1, init(config, seed=1), PROBE)
    assert other.sha256 != first.sha256
    jax.tree.map(np.testing.assert_array_equal, init(config, seed=1), load_params(config, other.folder))


def test_a_folder_that_is_no_model_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no config.json"):
        WeightStore(tmp_path / "weights", tmp_path, "float32", keep=2)


def randomised(config: ModelConfig, seed: int = 0) -> dict:
    """Parameters on the host, nothing compiled."""
    rng = np.random.default_rng(seed)
    draw = lambda x: (0.05 * rng.standard_normal(x.shape)).astype(np.float32)  # noqa: E731
    return jax.tree.map(draw, param_shapes(config))


def placed(params: dict, mesh: str) -> dict:
    return jax.device_put(params, param_shardings(params, make_mesh(mesh)))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def bits(folder: Path) -> dict[str, bytes]:
    return {name: tensor.tobytes() for name, tensor in open_tensors(folder).items()}


@pytest.mark.parametrize(("mesh", "writers"), [("2x4", 2), ("3x2", 3), ("1x8", 2)])
def test_files_of_several_writers_are_those_of_one_tensor_by_tensor(tmp_path, base, mesh, writers):
    """An odd number of layers, and dimensions that all devices divide, that ``model`` alone divides, and neither."""
    folder = tmp_path / "base"
    config = write_config(folder, num_hidden_layers=3, vocab_size=60, intermediate_size=66)
    params = randomised(config)
    one = WeightStore(tmp_path / "one", folder, "bfloat16", keep=2).write("tiny", 1, placed(params, "1x1"), PROBE)
    store = WeightStore(tmp_path / "many", folder, "bfloat16", keep=2, writers=writers)
    many = store.write("tiny", 1, placed(params, mesh), PROBE)
    whole = bits(Path(one.folder))
    assert whole["model.embed_tokens.weight"] == params["embed_tokens"].astype(ml_dtypes.bfloat16).tobytes()
    assert bits(Path(many.folder)) == whole
    assert len(many.sha256) == writers
    for name, digest in many.sha256.items():
        assert hashlib.sha256((Path(many.folder) / name).read_bytes()).hexdigest() == digest
    index = json.loads((Path(many.folder) / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(map(len, whole.values()))
    share = {}
    for file in many.sha256:
        (tmp_path / file).mkdir()
        (Path(many.folder) / file).rename(tmp_path / file / file)
        tensors = open_tensors(tmp_path / file)
        assert set(tensors) == {name for name, f in index["weight_map"].items() if f == file}
        share[file] = sum(tensor.nbytes for tensor in tensors.values())
    # Of each parameter a writer has at most a layer more than another.
    layer = sum(2 * math.prod(parameter.shape) for parameter in jax.tree.leaves(config.parameters()))
    assert max(share.values()) - min(share.values()) <= layer, share


def test_a_layer_is_gathered_between_processes_and_no_further():
    """Of 2 x 4 devices in two processes, a device ends with a quarter of the layer."""
    mesh = make_mesh("2x4")
    parameter = Parameter("x.{}", (64, 128), 1.0, transposed=True, layers=(0, 1, 2))
    sharding = NamedSharding(mesh, PartitionSpec(None, None, ("data", "model")))
    cells, before, after = relay._cells(parameter, (None, ("data", "model")), relay._split(mesh, 2))
    source, target = (NamedSharding(relay._split(mesh, 2), PartitionSpec(*names)) for names in (before, after))
    leaf = jax.ShapeDtypeStruct((3, 64, 128), np.float32, sharding=sharding)
    compiled = relay._cut(cells, "float32", True, source, target).lower(leaf, 1).compile()
    assert compiled.memory_analysis().output_size_in_bytes == 4 * 64 * 128 / 4
    assert compiled.memory_analysis().temp_size_in_bytes <= 2 * 4 * 64 * 128 / 4
    assert compiled.as_text().count(" all-gather(") == 1


def test_a_mesh_that_processes_cut_through_is_refused(tmp_path, base):
    config, folder = base
    store = WeightStore(tmp_path / "weights", folder, "bfloat16", keep=2, writers=4)
    with pytest.raises(ConfigError, match="a mesh of 2x3 can't be divided among 4 processes"):
        store.write("tiny", 1, placed(randomised(config), "2x3"), PROBE)


class Pushes:
    """A run of small updates, and an actor that follows it."""

    def __init__(self, tmp_path: Path, config, writers: int | None = None, full_every: int = 4, keep: int = 2):
        self.tmp_path, self.config, self.writers, self.full_every, self.keep = (
            tmp_path,
            config,
            writers,
            full_every,
            keep,
        )
        self.mesh = "2x4" if writers else "1x1"
        self.params = randomised(config)
        self.store = self.restarted()
        self.actor = Versions(tmp_path, tmp_path / "cache", print)

    def restarted(self) -> WeightStore:
        return WeightStore(
            self.tmp_path / "weights",
            self.tmp_path / "base",
            "bfloat16",
            keep=self.keep,
            full_every=self.full_every,
            writers=self.writers,
        )

    def updated(self) -> None:
        """So little that some values round to another and most don't."""
        self.params = jax.tree.map(lambda x: x + np.float32(1e-5), self.params)

    def write(self, version: int, final: bool = False) -> PolicyVersion:
        return self.store.write("tiny", version, placed(self.params, self.mesh), PROBE, final)

    def check(self, version: PolicyVersion) -> None:
        """The actor builds what a full push would have written."""
        full = WeightStore(
            self.tmp_path / "full", self.tmp_path / "base", "bfloat16", keep=1, writers=self.writers
        ).write("tiny", version.version, placed(self.params, self.mesh), PROBE)
        assert version.complete == full.sha256
        folder = self.actor.materialise(version)
        assert bits(folder) == bits(Path(full.folder))
        assert (folder / "tokenizer.json").exists()


@pytest.mark.parametrize("writers", [None, 2])
def test_an_actor_builds_every_version_from_deltas(tmp_path, base, writers):
    pushes = Pushes(tmp_path, base[0], writers)
    forms = []
    for number in range(7):
        version = pushes.write(number, final=number == 6)
        forms.append((version.form, version.onto))
        pushes.check(version)
        pushes.updated()
    assert forms == [
        ("full", None), ("delta", 0), ("delta", 1), ("delta", 2), ("full", None), ("delta", 4), ("full", None)
    ]  # fmt: skip


def test_a_delta_is_small_where_little_changes(tmp_path, base):
    pushes = Pushes(tmp_path, base[0])
    size = (Path(pushes.write(0).folder) / "model.safetensors").stat().st_size
    pushes.params = jax.tree.map(lambda x: x + np.float32(1e-6), pushes.params)
    delta = Path(pushes.write(1).folder)
    assert names(delta) == ["model.safetensors.delta", "version.json"]
    assert (delta / "model.safetensors.delta").stat().st_size < size / 20


def test_what_a_kept_delta_goes_onto_is_kept(tmp_path, base):
    pushes = Pushes(tmp_path, base[0])
    for version in range(8):
        pushes.write(version)
        pushes.updated()
    assert names(tmp_path / "weights") == ["v000000", "v000004", "v000005", "v000006", "v000007"]
    for version in range(8, 11):
        pushes.write(version)
        pushes.updated()
    assert names(tmp_path / "weights") == ["v000000", "v000008", "v000009", "v000010"]


def test_a_restarted_learner_keeps_what_it_announced_and_goes_on_with_deltas(tmp_path, base):
    pushes = Pushes(tmp_path, base[0])
    announced = []
    for number in range(3):
        announced.append(pushes.write(number))
        if number < 2:
            pushes.updated()
    pushes.store = pushes.restarted()
    assert pushes.write(2) == announced[2], "the same weights, as the same delta"
    pushes.updated()
    version = pushes.write(3)
    assert (version.form, version.onto) == ("delta", 2)
    pushes.check(version)


def test_a_restarted_learner_that_learns_otherwise_pushes_full(tmp_path, base):
    """A log replayed on another mesh, say: its sums round otherwise."""
    pushes = Pushes(tmp_path, base[0])
    for number in range(4):
        pushes.check(pushes.write(number))
        pushes.updated()
    pushes.store = pushes.restarted()
    version = pushes.write(3)
    assert version.form == "full"
    pushes.check(version)


def test_a_write_that_failed_is_made_again(tmp_path, base, monkeypatch):
    pushes = Pushes(tmp_path, base[0])
    pushes.write(0)
    pushes.updated()
    with monkeypatch.context() as patched:
        patched.setattr("learner.push.files.os.fsync", lambda number: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            pushes.write(1)
    assert names(tmp_path / "weights") == ["v000000"]
    version = pushes.write(1)
    assert version.form == "delta"
    pushes.check(version)
    pushes.updated()
    pushes.check(pushes.write(2))
