import json
from collections import Counter

import pytest

from rollout_engine.environments.registry import DOMAINS, domain, find_task, generate, load_tasks, read_tasks
from rollout_engine.environments.task import to_data
from rollout_engine.errors import ConfigurationError


def test_tasks_are_spread_evenly_over_families():
    tasks = load_tasks(DOMAINS, "heldout", 64)
    counts = Counter((task.domain, task.family) for task in tasks)
    assert len(counts) == 20
    assert set(counts.values()) == {3, 4}


def test_the_same_arguments_give_the_same_tasks():
    assert generate(["retail"], "train", 30) == generate(["retail"], "train", 30)
    assert load_tasks(["retail"], "train", 30) == generate(["retail"], "train", 30)


def test_another_seed_gives_other_tasks():
    one, two = generate(DOMAINS, "train", 40, seed=0), generate(DOMAINS, "train", 40, seed=1)
    assert not {task.id for task in one} & {task.id for task in two}
    assert not {task.opening for task in one if "B" in task.opening} & {t.opening for t in two if "B" in t.opening}


def test_a_task_is_found_by_its_id():
    for task in generate(DOMAINS, "train", 20, seed=3):
        assert find_task(task.id) == task


@pytest.mark.parametrize(
    ("id", "says"),
    [
        ("travel/nope/train/1", "no family 'nope' in domain travel; known: hotel_downgrade"),
        ("space/nope/train/1", "no domain 'space'; known: travel, retail"),
        ("travel/hotel_downgrade/test/1", "is no task id"),
        ("travel", "is no task id"),
    ],
)
def test_an_unknown_id_is_refused(id, says):
    with pytest.raises(ConfigurationError, match=says):
        find_task(id)


def test_a_pool_needs_domains_and_a_count():
    with pytest.raises(ConfigurationError, match="at least one domain"):
        load_tasks([], "train", 5)
    with pytest.raises(ConfigurationError, match="no domain 'space'"):
        load_tasks(["space"], "train", 5)
    with pytest.raises(ConfigurationError, match="the seed is -1"):
        load_tasks(["travel"], "train", 5, seed=-1)


def test_a_task_file_reads_back(tmp_path):
    tasks = generate(DOMAINS, "train", 20)
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps([to_data(task) for task in tasks]))
    assert read_tasks(path) == tasks


@pytest.mark.parametrize(
    ("text", "says"),
    [
        *(("{", "is not JSON"), ("{}", "array"), ("[]", "array"), ("[1]", "object")),
        *(("[" * 100_000, "is not JSON"), ('["\\ud800"]', "surrogates")),
    ],
)
def test_a_bad_task_file_is_refused(tmp_path, text, says):
    path = tmp_path / "tasks.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=says):
        read_tasks(path)


def test_one_server_a_domain():
    assert domain("travel").server is domain("travel").server
    assert [tool["name"] for tool in domain("travel").tools][:2] == ["get_booking", "request_approval"]
