import json

import pytest

from protocol.records import ToolCall
from rollout_engine.environments.registry import DOMAINS, generate
from rollout_engine.environments.task import Say, content_key, from_data, to_data
from rollout_engine.errors import ConfigurationError

MINIMAL = {"id": "mine/1", "domain": "travel", "opening": "hello", "script": [{"name": "get_booking"}]}


@pytest.mark.parametrize("task", generate(DOMAINS, "heldout", 40), ids=lambda task: task.id)
def test_json_form_loses_nothing(task):
    assert from_data(json.loads(json.dumps(to_data(task)))) == task


def test_oracle_is_the_scripts_calls():
    task = from_data({**MINIMAL, "script": [{"say": "which ?"}, {"name": "a"}, {"name": "b", "arguments": {"x": 1}}]})
    assert task.script[0] == Say("which ?")
    assert task.oracle == (ToolCall("a", {}), ToolCall("b", {"x": 1}))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"opening": None}, "task mine/1: field 'opening' must be a JSON string"),
        ({"split": "test"}, "split is 'test'"),
        ({"colour": "red"}, "unknown field 'colour'"),
        ({"rows": {"bookings": {}}}, "rows of table 'bookings'"),
        ({"script": ["get_booking"]}, "a turn of a script"),
        ({"script": [{"name": "x", "arguments": []}]}, "a turn of a script"),
        ({"slips": [{"name": "x"}]}, "a slip is an object"),
        ({"facts": {"room": None}}, "a fact is what the user says"),
        ({"facts": {"room": {"kind": "suite"}}}, "a fact is what the user says"),
    ],
)
def test_a_malformed_task_is_refused_by_name(change, says):
    with pytest.raises(ConfigurationError, match=says):
        from_data({**MINIMAL, **change})


def test_content_key_ignores_the_name_only():
    one, two = from_data(MINIMAL), from_data({**MINIMAL, "id": "mine/2"})
    assert content_key(one) == content_key(two)
    assert content_key(one) != content_key(from_data({**MINIMAL, "opening": "goodbye"}))
