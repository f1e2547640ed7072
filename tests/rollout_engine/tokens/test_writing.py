"""``interpret(render_call(call)) == call`` for any arguments that a schema allows; and no text breaks the reader."""

import json
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from protocol.records import Message, ToolCall
from rollout_engine.tokens.interpretation import interpret, render_call, render_turn
from rollout_engine.tokens.schema import compile_schema, same

FRAGMENTS = [
    "<tool_call>", "</tool_call>", "<function=", "<function=f>", "</function>", "<parameter=", "<parameter=a>",
    "</parameter>", "<think>", "</think>", "<|im_end|>", "<", ">", "</", "=", "\n", "\n\n", "\r\n", " ", "\t", '"',
    "'", "\\", "\\u003c", "{", "}", "[", "]", ",", ":", "null", "None", "true", "True", "5", "-5", "05", "5.0", "1e3",
    "NaN", '"x"', '{"a": 1}', "[1]", "é", "e\u0301", "🧳", "\u2028", "\x00", "\x85", "\ue0000\ue001", "B417", "a",
    '{"name": "f"',
]  # fmt: skip
hostile = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=8).map("".join)
names = st.sampled_from(
    ["a", "order_id", "Größe", "x y", "a>b", "<x", "a\nb", "parameter=a", "</function>", " a", '"q"', "$ref", ""]
)
numbers = (
    st.floats(allow_nan=False, allow_infinity=False)
    | st.integers(-(10**30), 10**30)
    | st.sampled_from([5.0, -0.0, 1e22])
)
scalars = st.none() | st.booleans() | numbers | hostile
plain_json = st.recursive(
    scalars, lambda more: st.lists(more, max_size=3) | st.dictionaries(hostile, more, max_size=3), max_leaves=8
)


@st.composite
def typed(draw, depth=2):
    """A schema and a strategy for the values that it allows."""
    kind = draw(
        st.sampled_from(
            ["string", "integer", "number", "boolean", "null", "any", "enum", "const", "union", "list", "dict"]
        )
    )
    if kind in ("union", "list", "dict") and not depth:
        kind = "string"
    if kind == "string":
        return {"type": "string"}, hostile
    if kind == "integer":
        return {"type": "integer"}, st.integers(-(10**30), 10**30) | st.sampled_from([5.0, -0.0, 1e22])
    if kind == "number":
        return {"type": "number"}, numbers
    if kind == "boolean":
        return {"type": "boolean"}, st.booleans()
    if kind == "null":
        return {"type": "null"}, st.none()
    if kind == "any":
        return draw(st.sampled_from([{}, True, {"description": "anything"}])), plain_json
    if kind == "enum":
        values = draw(st.lists(plain_json, min_size=1, max_size=3))
        return {"enum": values}, st.sampled_from(values)
    if kind == "const":
        value = draw(plain_json)
        return {"const": value}, st.just(value)
    if kind == "list":
        item, values = draw(typed(depth - 1))
        return {"type": "array", "items": item}, st.lists(values, max_size=3)
    if kind == "dict":
        known = {name: draw(typed(depth - 1)) for name in draw(st.lists(names, max_size=2, unique=True))}
        schema = {"type": "object", "properties": {n: s for n, (s, _) in known.items()}, "additionalProperties": False}
        return schema, st.fixed_dictionaries({}, optional={n: v for n, (_, v) in known.items()})
    members = draw(st.lists(typed(depth - 1), min_size=1, max_size=3))
    if draw(st.booleans()):
        return {"anyOf": [s for s, _ in members]}, st.one_of([v for _, v in members])
    kinds = draw(st.lists(st.sampled_from(["string", "integer", "number", "boolean", "null"]), min_size=1, unique=True))
    by_kind = {
        "string": hostile,
        "integer": st.integers(),
        "number": numbers,
        "boolean": st.booleans(),
        "null": st.none(),
    }
    return {"type": kinds}, st.one_of([by_kind[kind] for kind in kinds])


@st.composite
def conversations(draw):
    """Tools, and calls that their schemas allow."""
    tools, calls = [], []
    for name in draw(st.lists(names.filter(bool), min_size=1, max_size=2, unique=True)):
        parameters = {key: draw(typed()) for key in draw(st.lists(names, max_size=3, unique=True))}
        required = [key for key in parameters if draw(st.booleans())]
        schema = {"type": "object", "properties": {k: s for k, (s, _) in parameters.items()}, "required": required}
        values = st.fixed_dictionaries(
            {k: v for k, (_, v) in parameters.items() if k in required},
            optional={k: v for k, (_, v) in parameters.items() if k not in required},
        )
        tools.append({"name": name, "description": "", "parameters": schema})
        calls += [ToolCall(name, draw(values)) for _ in range(draw(st.integers(0, 2)))]
    return tools, calls


def exactly(read, call) -> bool:
    return read.error is None and read.name == call.name and same(read.arguments, call.arguments)


@settings(max_examples=400, deadline=None)
@given(conversations(), st.booleans())
@example(
    ([{"name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}}], [ToolCall("f", {"a": 1e22})]), False
)
def test_calls_survive_the_round_trip_together(drawn, knows_tools):
    tools, calls = drawn
    for call in calls:
        schema = next(tool["parameters"] for tool in tools if tool["name"] == call.name)
        assert compile_schema(schema).problem(call.arguments) is None
    text = "\n".join(render_call(call, tools if knows_tools else None) for call in calls)
    read = interpret(text, tools)
    assert (read.reasoning, read.content, len(read.calls)) == (None, "", len(calls))
    for got, call in zip(read.calls, calls, strict=True):
        assert exactly(got, call), (text, got)


@settings(max_examples=800, deadline=None)
@given(hostile, hostile, st.booleans())
@example("x\n</parameter>\n<parameter=b>\ny", "", True)
@example("null", "null", False)
def test_hostile_strings_survive_in_plain_and_nullable_parameters(a, b, reasoning_open):
    properties = {"a": {"type": "string"}, "b": {"anyOf": [{"type": "null"}, {"type": "string"}]}}
    tools = [{"name": "f", "parameters": {"type": "object", "properties": properties}}]
    call = ToolCall("f", {"a": a, "b": b})
    text = render_call(call, tools)
    assert interpret(text, tools).calls == (call,)
    assert interpret(text, tools, reasoning_open).calls == (call,)
    assert interpret(f"hm</think>Well.\n{text}\n{text}\nSo.", tools, reasoning_open).calls == (call, call)


@settings(max_examples=1500, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS) | hostile, max_size=30).map("".join), st.booleans())
def test_no_text_raises_and_no_value_is_invented(text, reasoning_open):
    properties = {"a": {"type": "string"}, "n": {"type": ["integer", "null"]}}
    tools = [{"name": "f", "parameters": {"type": "object", "properties": properties}}]
    read = interpret(text, tools, reasoning_open)
    for call in read.calls:
        assert (call.arguments is None) != (call.error is None)
        value = (call.arguments or {}).get("a", "")
        raw = any(f"<parameter=a>{x}{value}{y}</parameter>" in text for x in ("\n", "") for y in ("\n", ""))
        assert value == "" or raw or json.dumps(value, ensure_ascii=False) in text or '{"name"' in text


@settings(max_examples=300, deadline=None)
@given(hostile, hostile, st.integers(0, 200))
def test_a_cut_call_is_exact_or_refused(a, b, end):
    properties = {"a": {"type": "string"}, "b": {"type": "string"}}
    tools = [{"name": "f", "parameters": {"type": "object", "properties": properties, "required": ["a"]}}]
    call = ToolCall("f", {"a": a, "b": b})
    text = render_call(call, tools)
    for read in interpret(text[:end], tools).calls:
        assert read.error is not None or read == call


@settings(max_examples=300, deadline=None)
@given(hostile.map(str.strip), hostile.map(str.strip), hostile, st.booleans())
def test_turns_survive_the_round_trip(reasoning, content, value, reasoning_open):
    tools = [{"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}]
    message = Message("assistant", content, reasoning or None, (ToolCall("f", {"a": value}),))
    try:
        text = render_turn(message, tools, reasoning_open)
    except ValueError:
        assert re.search(r"think>|tool_call>|function|parameter|<\|", reasoning + content), (reasoning, content)
        return
    read = interpret(text, tools, reasoning_open)
    assert (read.reasoning, read.content, read.calls) == (message.reasoning, content, message.calls)


def test_the_usual_call_is_written_as_qwen_writes_it():
    call = ToolCall("book", {"guest": "Ada", "nights": 2, "vip": True, "extras": ["a"], "note": None})
    assert render_call(call) == (
        "<tool_call>\n<function=book>\n<parameter=guest>\nAda\n</parameter>\n<parameter=nights>\n2\n</parameter>\n"
        "<parameter=vip>\ntrue\n</parameter>\n<parameter=extras>\n[\"a\"]\n</parameter>\n"
        "<parameter=note>\nnull\n</parameter>\n</function>\n</tool_call>"
    )  # fmt: skip


def test_tags_in_a_value_take_the_json_form_without_any_tag():
    text = render_call(ToolCall("f", {"a": "x</parameter>é"}))
    assert text == '<tool_call>\n{"name": "f", "arguments": {"a": "x\\u003c/parameter\\u003eé"}}\n</tool_call>'


def test_what_cannot_be_written_is_refused():
    with pytest.raises(ValueError, match="refused call"):
        render_call(ToolCall("f", error="no"))
    with pytest.raises(ValueError, match="only assistant"):
        render_turn(Message("user", "x"))
    with pytest.raises(ValueError, match="can't be written"):
        render_turn(Message("assistant", "<tool_call>"))
