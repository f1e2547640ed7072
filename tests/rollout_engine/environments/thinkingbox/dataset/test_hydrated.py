import dataclasses
import json

import pytest

from rollout_engine.environments.thinkingbox.dataset import DatasetError, hydrated_line, read_hydrated, write_hydrated


def test_a_case_is_read_back_as_it_was_written(dataset, tmp_path):
    cases, file = dataset.hydrate(agent="desk"), tmp_path / "cases.jsonl"
    write_hydrated(cases, file)
    back = read_hydrated(file)
    assert [
        dataclasses.replace(case, file=was.file, line=was.line) for case, was in zip(back, cases, strict=True)
    ] == cases
    assert [(case.file, case.line) for case in back[:2]] == [(str(file), 1), (str(file), 2)]
    assert dataset.hydrate([str(file)]) == back
    with pytest.raises(DatasetError, match=r"cases.jsonl:1: hydrated for agent 'desk', not 'night'"):
        dataset.hydrate([str(file)], "night")


def test_a_line_has_the_fields_of_the_public_tool_in_their_order(dataset):
    case = dataset.hydrate(["hotel_more_talk.py:test_goes_on"], "desk")[0]
    line = json.loads(hydrated_line(case))
    assert list(line) == [
        "uid", "agent", "scenario", "history", "query", "test_code", "bot_instructions", "user_context",
        "max_user_sim_turns", "max_agent_sim_turns", "init", "format_query", "metadata", "tags", "fixtures",
    ]  # fmt: skip
    assert list(line["metadata"]) == ["scenario", "agent", "test_case_file", "test_case_name"]
    assert line["max_agent_sim_turns"] == 2**63 - 1
    assert line["history"][0] == {"T": "Text", "metadata": {}, "role": "user", "content": "One night more for B1."}
    assert list(line["history"][1]["tool_calls"][0]) == ["T", "metadata", "name", "arguments", "id"]
    assert line["fixtures"]["auditor"] == {"type": "hotel_fixtures.Auditor", "limit": 6}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda line: line.pop("query"), "missing required field `query`"),
        (lambda line: line.update(querry="x"), "unknown key 'querry'; did you mean 'query'?"),
        (lambda line: line["scenario"]["tools"][0].update(nam="x"), "unknown key 'nam'; did you mean 'name'?"),
        (lambda line: line.update(test_code="x = 1"), "test_code binds no function"),
        (lambda line: line.update(fixtures={}), "takes 'auditor', which is no fixture"),
        (lambda line: line["fixtures"]["desk"].pop("type"), "fixture 'desk' has no type"),
    ],
)
def test_a_line_that_cannot_be_used_is_told_by_its_number(dataset, tmp_path, change, fault):
    good = hydrated_line(dataset.hydrate(["hotel_more_talk.py:test_letter"], "desk")[0])
    line = json.loads(good)
    change(line)
    file = tmp_path / "cases.jsonl"
    file.write_text(f"{good.decode()}\n\n{json.dumps(line)}\n")
    with pytest.raises(DatasetError) as caught:
        read_hydrated(file)
    assert fault in str(caught.value) and caught.value.line == 3


def test_what_is_not_json_is_told_by_its_number(tmp_path):
    file = tmp_path / "cases.jsonl"
    file.write_text("{\n")
    with pytest.raises(DatasetError, match=r"cases.jsonl:1: not JSON"):
        read_hydrated(file)
