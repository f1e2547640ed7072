"""Which ThinkingBox tasks a run has, and which of them may be trained on."""

import shutil
from pathlib import Path

import pytest

from protocol import config as configuration
from rollout_engine.curation.candidates import heldout_tasks, training_candidates
from rollout_engine.environments.thinkingbox.places import find_thinkingbox_tasks, places
from rollout_engine.environments.thinkingbox.releases import evaluation_only
from rollout_engine.errors import ConfigurationError
from rollout_engine.evaluation.tasks import evaluated_tasks

DATA = Path(__file__).parent / "data"


@pytest.fixture
def released(tmp_path):
    """A checkout with one release, whose README says what may be done with it."""
    shutil.copytree(DATA, tmp_path / "checkout")
    release = tmp_path / "checkout" / "releases" / "v1"
    release.mkdir(parents=True)
    (release / "testlist.yaml").write_text("- hotel.py:test_cancel\n- hotel.py:test_today\n")
    (release / "README.md").write_text("# V1\n\nIntended **exclusively for evaluation**. Do not train on it.\n")
    return tmp_path / "checkout"


def test_tasks_are_those_that_the_configuration_selects(hotel_config):
    config = hotel_config(heldout=["hotel.py:test_cancel", "smoke.yaml"], train=["hotel_more/hotel_more_talk.py"])
    with pytest.raises(ConfigurationError, match="selected twice"):
        heldout_tasks(config)
    config = hotel_config(heldout=["smoke.yaml"], train=["hotel_more/hotel_more_talk.py"])
    assert all(task.id.startswith("thinkingbox/") and task.split == "heldout" for task in heldout_tasks(config))
    train = training_candidates(config)
    assert [task.id for task in train][0] == "thinkingbox/hotel_more_talk.py:test_goes_on"
    assert {task.family for task in train} == {"hotel", "hotel_mail"}
    with pytest.raises(ConfigurationError, match="embeds no golden calls"):
        _ = next(task for task in train if task.id.endswith("fixtures")).script


def test_tasks_kept_for_evaluation_are_evaluated_but_never_trained_on(hotel_config, released):
    data = str(released / "dataset")
    assert set(evaluation_only(released / "dataset")) == {"hotel.py"}
    config = hotel_config(data=data, heldout=["hotel.py"], train=["hotel.py:test_extend_new"])
    assert len(heldout_tasks(config)) == 5
    with pytest.raises(ConfigurationError, match=r"hotel.py:test_extend_new .* not trained on: .*v1/README.md says so"):
        training_candidates(config)
    (released / "releases" / "v1" / "README.md").write_text("For training and for evaluation, as you like.\n")
    assert len(training_candidates(config)) == 1


def test_ids_of_a_file_find_their_tasks(hotel_config, tmp_path):
    config = hotel_config()
    (tmp_path / "ids.txt").write_text("thinkingbox/hotel.py:test_today\ntravel/no_show/train/0\n")
    with pytest.raises(ConfigurationError):
        evaluated_tasks(config, str(tmp_path / "ids.txt"))
    [task] = find_thinkingbox_tasks(config, ["thinkingbox/hotel.py:test_today"])
    assert task.case.function == "test_today"
    with pytest.raises(ConfigurationError, match="test_tody"):
        find_thinkingbox_tasks(config, ["thinkingbox/hotel.py:test_tody"])


def test_where_to_look_is_said_by_the_configuration_or_by_the_environment(hotel_config, monkeypatch):
    monkeypatch.delenv("ENDSTATE_THINKINGBOX_DATA", raising=False)
    empty = configuration.ThinkingBox(heldout=("a.py",))
    with pytest.raises(ConfigurationError, match=r"tasks.thinkingbox.data is empty and \$ENDSTATE_THINKINGBOX_DATA"):
        places(empty)
    monkeypatch.setenv("ENDSTATE_THINKINGBOX_DATA", str(DATA))
    monkeypatch.setenv("ENDSTATE_THINKINGBOX_PYTHON", "/usr/bin/python9")
    found = places(empty)
    assert (found.data, found.servers) == (DATA / "dataset", DATA / "servers" / "servers.yaml")
    assert found.python == "/usr/bin/python9" and found.env["THINKINGBOX_DATA"] == str(DATA)
    assert places(hotel_config().tasks.thinkingbox).data == DATA / "dataset"


@pytest.mark.parametrize("name", ["thinkingbox-bench", "thinkingbox-dev"])
def test_the_shipped_configurations_are_for_evaluation(name):
    config = configuration.load(Path(__file__).parents[4] / "configs" / f"{name}.yaml")
    assert config.tasks.domains == () and config.tasks.thinkingbox.heldout and not config.tasks.thinkingbox.train
    with pytest.raises(ConfigurationError, match="there is no task to train on"):
        training_candidates(config)


@pytest.mark.parametrize(
    "settings, fault",
    [
        ({"env": {"A=B": "c"}}, "tasks.thinkingbox.env: 'A=B' can't be a variable"),
        ({"env": {"A": "\0"}}, "tasks.thinkingbox.env: 'A' can't be a variable"),
        ({"modules": ["/no/where"]}, "tasks.thinkingbox.modules: no folder '/no/where'"),
        (
            {"tags": ["skip_nothing"]},
            "tasks.thinkingbox.tags: no task under tasks.thinkingbox.heldout has all of skip_no",
        ),
        ({"heldout": []}, "--tasks heldout: there is none"),
    ],
)
def test_settings_that_leave_nothing_to_do_are_refused(hotel_config, settings, fault):
    with pytest.raises(ConfigurationError, match=fault):
        evaluated_tasks(hotel_config(**settings), "heldout")
