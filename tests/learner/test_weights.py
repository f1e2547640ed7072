import hashlib
from pathlib import Path

import jax
import numpy as np
import pytest
from tiny import init, make_model

from learner.models.huggingface import load_params
from learner.weights import WeightStore
from protocol.config import ConfigError
from protocol.records import Probe

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
    ]
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
