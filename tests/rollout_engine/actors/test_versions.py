"""Complete weight files of announced versions, or an error that names what is wrong."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

from protocol import delta
from protocol.records import PolicyVersion, Probe
from protocol.versions import folder_name, read_record, write_record
from rollout_engine.actors.digests import WeightsDamaged, verify_digests
from rollout_engine.actors.versions import Versions

PROBE = Probe(b"", b"", 0.05)
NAMES = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Learner:
    """Pushes versions of two files of random words; versions 0 and 4 complete, the others as deltas."""

    def __init__(self, run: Path, versions: int = 7):
        self.run = run
        rng = np.random.default_rng(0)
        self.files = [{name: rng.integers(0, 2**16, 5000, np.uint16) for name in NAMES}]
        self.announced = [self._full(0)]
        for version in range(1, versions):
            self.files.append({name: self._stepped(rng, words) for name, words in self.files[-1].items()})
            self.announced.append(self._full(version) if version == 4 else self._delta(version))

    def folder(self, version: int) -> Path:
        return self.run / "weights" / folder_name(version)

    def whole(self, version: int) -> dict[str, str]:
        return {name: digest(words.tobytes()) for name, words in self.files[version].items()}

    def _stepped(self, rng, words: np.ndarray) -> np.ndarray:
        return words + np.where(rng.random(len(words)) < 0.02, 1, 0).astype(np.uint16)

    def _full(self, version: int) -> PolicyVersion:
        folder = self.folder(version)
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        for name, words in self.files[version].items():
            (folder / name).write_bytes(words.tobytes())
        return self._announce(PolicyVersion("r", version, f"weights/{folder.name}", self.whole(version), PROBE))

    def _delta(self, version: int) -> PolicyVersion:
        folder = self.folder(version)
        folder.mkdir(parents=True)
        digests = {}
        for name, words in self.files[version].items():
            old, new = (x.view(np.uint8) for x in (self.files[version - 1][name], words))
            data = b"".join(change.encode() for change in delta.changes(old, new, 0))
            (folder / (name + delta.SUFFIX)).write_bytes(data)
            digests[name + delta.SUFFIX] = digest(data)
        place = f"weights/{folder.name}"
        return self._announce(
            PolicyVersion(
                "r", version, place, digests, PROBE, form="delta", onto=version - 1, whole=self.whole(version)
            )
        )

    def _announce(self, version: PolicyVersion) -> PolicyVersion:
        write_record(self.folder(version.version), version)
        return version


class Scene:
    def __init__(self, tmp_path: Path):
        self.learner = Learner(tmp_path / "run")
        self.cache = tmp_path / "cache"
        self.told: list[str] = []
        self.actor = self.restarted()

    def restarted(self) -> Versions:
        return Versions(self.learner.run, self.cache, self.told.append)

    def check(self, version: int) -> Path:
        """Materialise it and compare every word."""
        folder = self.actor.materialise(self.learner.announced[version])
        for name, words in self.learner.files[version].items():
            np.testing.assert_array_equal(np.fromfile(folder / name, np.uint16), words)
        assert (folder / "config.json").exists()
        return folder


@pytest.fixture
def scene(tmp_path) -> Scene:
    return Scene(tmp_path)


def test_each_version_in_turn_is_complete_and_the_learners_folders_stay_as_they_were(scene):
    before = {path: path.read_bytes() for path in scene.learner.run.rglob("*") if path.is_file()}
    folders = [scene.check(version) for version in range(7)]
    assert [folder.parent == scene.cache for folder in folders] == [False, True, True, True, False, True, True]
    assert scene.told == []
    assert [path.name for path in scene.cache.iterdir()] == ["v000006"]
    assert {path: path.read_bytes() for path in scene.learner.run.rglob("*") if path.is_file()} == before


def test_a_full_version_leaves_nothing_in_the_cache(scene):
    scene.check(3)
    scene.check(4)
    assert list(scene.cache.iterdir()) == []


@pytest.mark.parametrize("version", [1, 3, 6])
def test_a_new_actor_catches_up_from_the_last_full_version(scene, version):
    scene.check(version)
    assert scene.told == []


def test_an_actor_that_missed_versions_applies_all_since(scene):
    scene.check(1)
    shutil.rmtree(scene.learner.folder(0))
    scene.check(3)


def test_a_restarted_actor_goes_on_with_what_it_holds(scene):
    scene.check(2)
    shutil.rmtree(scene.learner.folder(0))
    scene.actor = scene.restarted()
    scene.check(2)
    scene.check(3)


def test_a_build_that_was_killed_passes_for_nothing(scene):
    scene.check(1)
    building = scene.cache / ".building"
    (scene.cache / "v000001").rename(building)
    (building / NAMES[0]).write_bytes(b"half patched")
    scene.actor = scene.restarted()
    scene.check(2)
    assert [path.name for path in scene.cache.iterdir()] == ["v000002"]


def test_a_held_version_that_is_not_what_it_was_is_given_up(scene):
    scene.check(1)
    (scene.cache / "v000001" / NAMES[1]).write_bytes(scene.learner.files[0][NAMES[1]].tobytes())
    scene.check(2)
    assert len(scene.told) == 1 and "building version 2 from the last full one" in scene.told[0]
    scene.check(3)
    assert len(scene.told) == 1


def test_a_held_version_that_the_chain_does_not_pass_is_given_up(scene):
    scene.check(3)
    scene.check(5)
    assert "version 3, which is held, is not in the chain of version 5" in scene.told[0]


def test_a_damaged_delta_is_named_and_what_is_held_stays(scene):
    scene.check(1)
    file = scene.learner.folder(2) / (NAMES[0] + delta.SUFFIX)
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with pytest.raises(WeightsDamaged, match=f"v000002/{file.name} has sha256"):
        scene.actor.materialise(scene.learner.announced[2])
    file.write_bytes(whole)
    scene.check(2)


def test_a_delta_with_the_right_digest_and_wrong_changes_builds_nothing(scene):
    """Announced as it is, but not what makes the version."""
    scene.check(1)
    folder, name = scene.learner.folder(2), NAMES[0] + delta.SUFFIX
    shutil.copy(scene.learner.folder(1) / name, folder / name)
    announced = scene.learner.announced[2]
    digests = {**announced.sha256, name: digest((folder / name).read_bytes())}
    wrong = msgspec.structs.replace(announced, sha256=digests)
    with pytest.raises(WeightsDamaged, match=f"{NAMES[0]} has sha256"):
        scene.actor.materialise(wrong)
    assert list(scene.cache.iterdir()) == []


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_link_is_named(scene, missing):
    shutil.rmtree(scene.learner.folder(missing))
    with pytest.raises(WeightsDamaged, match=f"version 3 can't be built: .*v00000{missing}, .* is not there"):
        scene.actor.materialise(scene.learner.announced[3])


def test_a_full_disk_is_named(scene, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copytree", full)
    with pytest.raises(WeightsDamaged, match="v000001 can't be built: .*No space left"):
        scene.actor.materialise(scene.learner.announced[1])


def test_a_record_is_read_where_its_folder_lies_now(scene, tmp_path):
    moved = tmp_path / "elsewhere"
    shutil.move(scene.learner.folder(2), moved)
    assert read_record(moved).folder == str(moved)
    (moved / "version.json").write_text('{"run": 1}')
    assert read_record(moved) is None


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({"x.safetensors": b"x"}, "model.safetensors was announced but is not there"),
        ({"model.safetensors": b"x", "y.safetensors": b"y"}, "y.safetensors is there but was not announced"),
        ({"model.safetensors": b"X"}, "model.safetensors has sha256"),
    ],
)
def test_digests_name_the_file_at_fault(tmp_path: Path, files: dict[str, bytes], fault: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    announced = {"model.safetensors": digest(b"x")}
    if "x.safetensors" in files:
        announced["x.safetensors"] = digest(b"x")
    with pytest.raises(WeightsDamaged, match=fault):
        verify_digests(tmp_path, announced)


def test_a_file_that_goes_while_it_is_checked_is_missing_and_no_end(tmp_path: Path) -> None:
    """The learner removes old versions."""
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "gone")
    with pytest.raises(WeightsDamaged, match="model.safetensors can't be read: No such file"):
        verify_digests(tmp_path, {"model.safetensors": "0" * 64})
