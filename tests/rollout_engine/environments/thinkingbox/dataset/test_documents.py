from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rollout_engine.environments.thinkingbox.dataset.documents import Document, read_document
from rollout_engine.environments.thinkingbox.dataset.errors import DatasetError
from rollout_engine.environments.thinkingbox.dataset.schema import ScenarioFile, YamlTestFile

FILE = Path("some.yaml")

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(PLAIN)
def test_what_json_can_say_is_read_as_it_was_written(tree):
    assert Document(yaml.safe_dump(tree), FILE).tree == tree


def test_anchors_and_merge_keys_are_followed_and_may_be_overridden():
    text = "base: &base {a: 1, b: 2}\nover: {<<: *base, b: 3}\nsame: *base\n"
    assert Document(text, FILE).tree == {"base": {"a": 1, "b": 2}, "over": {"a": 1, "b": 3}, "same": {"a": 1, "b": 2}}


@pytest.mark.parametrize(
    ("text", "line", "fault"),
    [
        ("a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\n", 5, "the key 'c' is written twice"),
        ("x: &x {a: 1}\ny:\n  <<: *x\n  b: 1\n  b: 2\n", 5, "the key 'b' is written twice"),
        ("a:\n  1: x\n", 2, "the key 1 is not text; put it in quotes"),
        ("a:\n- yes: x\n", 2, "the key True is not text"),
        ("a: 1\nb: 2030-05-01\n", 2, "a date can't be written as JSON; put it in quotes"),
        ("a: 2030-05-01T10:00:00Z\n", 1, "a date can't be written as JSON"),
        ("a: 1\nb: .inf\n", 2, ".inf is no number that JSON can write"),
        ("a: !!set {x}\n", 1, "a set can't be written as JSON"),
        ("a: !!binary eA==\n", 1, "binary data can't be written as JSON"),
        ("a: !!python/object:os.system x\n", 1, "could not determine a constructor for the tag"),
        ("a: 1\nb: [1,\nc: 2\n", 4, "did not find expected ',' or ']'"),
        ("a: 1\n? [x]\n: 2\n", 2, "found unhashable key"),
        ("a: *gone\n", 1, "found undefined alias"),
        ("a: 1\n---\nb: 2\n", 2, "but found another document"),
    ],
)
def test_what_is_not_meant_is_refused_with_its_line(text, line, fault):
    for first, shift in ((1, 0), (41, 40)):
        with pytest.raises(DatasetError) as caught:
            _ = Document(text, FILE, first).tree
        assert fault in caught.value.message and caught.value.line == line + shift
        assert str(caught.value).startswith(f"some.yaml:{line + shift}: ")


@pytest.mark.parametrize("text", ["[" * 100_000, "a: \x07", "a: " + "9" * 5000, "a: &a [*a]", "&a {b: *a}"])
def test_what_no_parser_takes_is_a_fault_of_the_file(text):
    with pytest.raises(DatasetError, match="some.yaml"):
        _ = Document(text, FILE).tree


@pytest.mark.parametrize(
    ("kind", "text", "line", "fault"),
    [
        (
            ScenarioFile,
            "world_state: {}\ntools:\n- name: a\n- name: b\n  overide_description: x\n",
            5,
            "unknown key 'overide_description'; did you mean 'override_description'?",
        ),
        (
            ScenarioFile,
            "world_state: {}\ntools: []\nworld: {}\n",
            3,
            "unknown key 'world'; did you mean 'world_state'?",
        ),
        (ScenarioFile, "world_state: {}\ntools:\n- name: a\n- {}\n", 4, "missing required field `name`"),
        (ScenarioFile, "world_state: {}\ntools:\n- name: 3\n", 3, "Expected `str`, got `int`"),
        (ScenarioFile, "tools: []\n", 1, "missing required field `world_state`"),
        (ScenarioFile, "world_state: {}\ntools: []\nfixtures:\n  f: text\n", 3, "Expected `object`, got `str`"),
        (
            YamlTestFile,
            "test_cases:\n- uid: a\n  test_code: x\n  init: {hotel: [1]}\n",
            4,
            "Expected `object`, got `array`",
        ),
        (YamlTestFile, "test_cases:\n- uid: a\n  test_code: x\n  max_user_sim_turns: -1\n", 4, ">= 0"),
    ],
)
def test_a_wrong_field_is_told_with_its_line_and_the_nearest_name(kind, text, line, fault):
    with pytest.raises(DatasetError) as caught:
        Document(text, FILE).typed(kind)
    assert fault in str(caught.value) and caught.value.line == line


def test_a_mapping_is_asked_for_by_name():
    for text, kind in [("[]", "a list"), ("word", "text"), ("", "nothing")]:
        with pytest.raises(DatasetError, match=f"a mapping belongs here, not {kind}"):
            Document(text, FILE).mapping()


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(DatasetError, match=r"gone.yaml: cannot be read: No such file"):
        read_document(tmp_path / "gone.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"\xe9")
    with pytest.raises(DatasetError, match=r"latin.yaml: not UTF-8"):
        read_document(tmp_path / "latin.yaml")


def test_every_tree_is_json(dataset):
    for file in dataset.folder.rglob("*.yaml"):
        msgspec.json.encode(read_document(file).tree)
