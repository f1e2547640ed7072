import hashlib
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from tiny import init, make_model

from learner.mesh import make_mesh, param_shardings
from learner.models.huggingface import load_params, open_tensors
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


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def bits(folder: Path) -> dict[str, bytes]:
    return {name: tensor.tobytes() for name, tensor in open_tensors(folder).items()}


@pytest.mark.parametrize(("mesh", "writers"), [("2x4", 1), ("2x4", 2), ("2x4", 4), ("3x2", 3), ("1x8", 2)])
def test_files_of_several_writers_are_those_of_one_tensor_by_tensor(tmp_path, base, mesh, writers):
    """An odd number of layers, and dimensions that 2 x 4 divides, that 4 alone divides, and that neither does."""
    config = make_model(tmp_path / "base", num_hidden_layers=3, vocab_size=60, intermediate_size=66)
    params = init(config, seed=3)
    one = WeightStore(tmp_path / "one", tmp_path / "base", "bfloat16", keep=2).write("tiny", 1, params, PROBE)
    placed = jax.device_put(params, param_shardings(params, make_mesh(mesh)))
    store = WeightStore(tmp_path / "many", tmp_path / "base", "bfloat16", keep=2, writers=writers)
    many = store.write("tiny", 1, placed, PROBE)
    whole = bits(Path(one.folder))
    assert bits(Path(many.folder)) == whole
    assert len(many.sha256) == writers
    for name, digest in many.sha256.items():
        assert hashlib.sha256((Path(many.folder) / name).read_bytes()).hexdigest() == digest
    if writers > 1:
        index = json.loads((Path(many.folder) / "model.safetensors.index.json").read_text())
        assert index["metadata"]["total_size"] == sum(map(len, whole.values()))
        for file in many.sha256:
            (tmp_path / file).mkdir()
            (Path(many.folder) / file).rename(tmp_path / file / file)
            assert set(open_tensors(tmp_path / file)) == {n for n, f in index["weight_map"].items() if f == file}


def test_no_writer_has_much_more_to_write_than_another(tmp_path, base):
    config = make_model(tmp_path / "base", num_hidden_layers=6)
    placed = jax.device_put(init(config), param_shardings(init(config), make_mesh("2x4")))
    store = WeightStore(tmp_path / "weights", tmp_path / "base", "bfloat16", keep=2, writers=2)
    version = store.write("tiny", 1, placed, PROBE)
    small, large = sorted((Path(version.folder) / name).stat().st_size for name in version.sha256)
    assert large < 1.1 * small


def test_a_mesh_that_processes_cut_through_is_refused(tmp_path, base):
    config, folder = base
    placed = jax.device_put(init(config), param_shardings(init(config), make_mesh("2x3")))
    store = WeightStore(tmp_path / "weights", folder, "bfloat16", keep=2, writers=4)
    with pytest.raises(ConfigError, match="a mesh of 2x3 can't be divided among 4 processes"):
        store.write("tiny", 1, placed, PROBE)


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
        mesh = make_mesh("2x4" if writers else "1x1")
        self.params = jax.device_put(init(config), param_shardings(init(config), mesh))
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
        """Each value by a thousandth, so that some round to another and most don't."""
        self.params = jax.tree.map(lambda x: x * 1.0005, self.params)

    def write(self, version: int, final: bool = False) -> PolicyVersion:
        return self.store.write("tiny", version, self.params, PROBE, final)

    def check(self, version: PolicyVersion) -> None:
        """The actor builds what a full push would have written."""
        full = WeightStore(
            self.tmp_path / "full", self.tmp_path / "base", "bfloat16", keep=1, writers=self.writers
        ).write("tiny", version.version, self.params, PROBE)
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
    config = make_model(tmp_path / "base", hidden_size=64, intermediate_size=256, vocab_size=512)
    pushes = Pushes(tmp_path, config)
    size = (Path(pushes.write(0).folder) / "model.safetensors").stat().st_size
    pushes.params = jax.tree.map(lambda x: x * 1.0001, pushes.params)
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
        pushes.updated()
    pushes.params = jax.tree.map(lambda x: x / 1.0005, pushes.params)
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
