import json

import pytest

from protocol import config as configuration
from rollout_engine.errors import ConfigurationError
from rollout_engine.quickstart.stages import Stopwatch, claim_folder, sole_job


def test_a_folder_belongs_to_one_configuration(tmp_path):
    tree = {"run": "r", "folder": str(tmp_path)}
    claim_folder(configuration.resolve(tree))
    claim_folder(configuration.resolve(tree))
    with pytest.raises(ConfigurationError, match=r"\(learner.steps, seed differ\)(?s:.*)--fresh"):
        claim_folder(configuration.resolve(tree | {"seed": 1, "learner": {"steps": 3}}))


def test_two_jobs_never_share_a_folder(tmp_path):
    config = configuration.resolve({"run": "mine", "folder": str(tmp_path)})
    with sole_job(config):
        with pytest.raises(ConfigurationError, match="another bin/quickstart is at work in .*mine"), sole_job(config):
            pass
        with sole_job(configuration.resolve({"run": "other", "folder": str(tmp_path)})):
            pass
    with sole_job(config):
        pass


def test_seconds_add_up_over_reruns(tmp_path):
    (tmp_path / "seconds.json").write_text(json.dumps({"probe": 10.0}))
    watch = Stopwatch(tmp_path)
    with watch.stage("probe"):
        pass
    with pytest.raises(KeyError), watch.stage("train"):
        raise KeyError
    kept = json.loads((tmp_path / "seconds.json").read_text())
    assert 10.0 <= kept["probe"] < 10.5 and kept["train"] < 0.5
