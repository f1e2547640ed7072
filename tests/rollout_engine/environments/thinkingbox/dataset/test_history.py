from pathlib import Path

import pytest

from rollout_engine.environments.thinkingbox.dataset import DatasetError, ParallelToolCall, Text, ToolCall, ToolResponse
from rollout_engine.environments.thinkingbox.dataset.documents import Document
from rollout_engine.environments.thinkingbox.dataset.history import Histories, read_reference
from rollout_engine.environments.thinkingbox.dataset.schema import HistoryReference

META = """\
t: a note
$history:
  "a: b":
  - {T: Text, message_id: m1, role: user, content: one}
  - T: ParallelToolCall
    tool_calls: [{T: ToolCall, name: f, arguments: {n: 1}, id: c1}]
  - {T: ToolResponse, name: f, content: '2', id: c1, metadata: {late: true}}
  - {T: Text, message_id: m2, role: assistant, content: two}
  "#off": nonsense
  empty:
"""


@pytest.fixture
def resolve(tmp_path):
    def resolve(reference, meta=META):
        (tmp_path / "t.meta.yaml").write_text(meta)
        said = Document(f"history: {reference}", Path("t.py"), 20)
        return Histories(tmp_path / "t.py").resolve(read_reference(said, ("history",)), said, ("history",))

    return resolve


ONE = Text(role="user", content="one")
CALL = ParallelToolCall(tool_calls=(ToolCall(name="f", arguments={"n": 1}, id="c1"),))
RESPONSE = ToolResponse(name="f", content="2", id="c1", metadata={"late": True})
TWO = Text(role="assistant", content="two")


@pytest.mark.parametrize(
    ("reference", "messages"),
    [
        ("'a: b:0:'", (ONE, CALL, RESPONSE, TWO)),
        ("'a: b:0:m2'", (ONE, CALL, RESPONSE)),
        ("'a: b:2:'", (RESPONSE, TWO)),
        ("'a: b:m1:m2'", (ONE, CALL, RESPONSE)),
        ("'a: b:m2:'", (TWO,)),
        ("'a: b:4:'", ()),
        ("{key: 'a: b', start: 3, end: ''}", (TWO,)),
    ],
)
def test_a_slice_of_a_recorded_list(resolve, reference, messages):
    assert resolve(reference) == messages


@pytest.mark.parametrize(
    ("reference", "fault"),
    [
        ("nothing", "is not 'key:start:end'"),
        ("':0:'", "is not 'key:start:end'"),
        ("'a: c:0:'", "history 'a: c' is not in t.meta.yaml; did you mean 'a: b'?"),
        ("'empty:0:'", "is not in t.meta.yaml"),
        ("'#off:0:'", "is not in t.meta.yaml"),
        ("'a: b:5:'", "history starts at 5, of 4 messages"),
        ("'a: b:-1:'", "history starts at -1"),
        ("'a: b:m3:'", "no message_id 'm3'; did you mean 'm2'?"),
        ("'a: b:0:m9'", "no message_id 'm9'"),
        ("'a: b:m2:m1'", "history ends at 'm1', which doesn't come after its start"),
        ("{key: a}", "missing required field `start`"),
        ("3", "Expected `object`, got `int`"),
    ],
)
def test_a_reference_to_nothing_is_told_where_it_is_written(resolve, reference, fault):
    with pytest.raises(DatasetError) as caught:
        resolve(reference)
    assert fault in str(caught.value) and str(caught.value).startswith("t.py:20: ")


@pytest.mark.parametrize(
    ("old", "new", "line", "fault"),
    [
        ("T: Text, message_id: m1, role: user", "T: Txt, role: user", 4, "T must be one of Text, ToolCall, "),
        ("T: Text, message_id: m1, role: user", "role: user", 4, "T must be one of"),
        ("role: user", "role: tool", 4, "Invalid enum value 'tool'"),
        ("name: f, arguments: {n: 1}, id", "name: f, id", 6, "missing required field `arguments`"),
        ("name: f, content: '2'", "nam: f, name: f, content: '2'", 7, "unknown key 'nam'; did you mean 'name'?"),
        ("content: '2'", "content: 2", 7, "Expected `str`, got `int`"),
    ],
)
def test_a_message_that_lacks_something_is_told_where_it_stands(resolve, old, new, line, fault):
    assert old in META
    with pytest.raises(DatasetError) as caught:
        resolve("'a: b:0:'", META.replace(old, new))
    assert fault in str(caught.value) and caught.value.line == line
    assert caught.value.file.endswith("t.meta.yaml")


def test_a_companion_file_of_another_shape_is_refused(resolve):
    for meta, fault in [
        ("[]", "a mapping belongs here"),
        ("$history: []", "not in"),
        ("$history: 3", "must be a mapping"),
    ]:
        with pytest.raises(DatasetError, match=fault):
            resolve("'a:0:'", meta)
    with pytest.raises(DatasetError, match="'a' must be a list of messages"):
        resolve("'a:0:'", "$history: {a: {}}")


def test_without_a_companion_file_there_is_no_history(tmp_path):
    said = Document("history: 'a:0:'", Path("t.py"))
    with pytest.raises(DatasetError, match="there is no t.meta.yaml beside the tests"):
        Histories(tmp_path / "t.py").resolve(HistoryReference(key="a", start=0, end=""), said, ("history",))
