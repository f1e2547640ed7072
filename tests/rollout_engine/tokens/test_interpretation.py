"""Each rule of the interpretation, by its number in the module's docstring."""

import io
import json
import os
import subprocess
import sys

import pytest

from protocol.records import ToolCall
from rollout_engine.errors import ConfigurationError
from rollout_engine.tokens.interpretation import interpret, main
from rollout_engine.tokens.toolset import checked_by_server

TOOLS = [
    {
        "name": "book",
        "description": "Book a room",
        "parameters": {
            "type": "object",
            "properties": {
                "guest": {"type": "string"},
                "nights": {"type": "integer"},
                "note": {"type": "string"},
                "vip": {"type": "boolean"},
            },
            "required": ["guest"],
        },
    },
    {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}},
]


def xml(name="book", *, opened=True, closed=True, **values):
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    head, tail = ("<tool_call>\n" if opened else ""), ("\n</tool_call>" if closed else "")
    return f"{head}<function={name}>\n{body}</function>{tail}"


def one(text, **options):
    read = interpret(text, TOOLS, **options)
    assert len(read.calls) == 1, read
    return read.calls[0]


ADA = ToolCall("book", {"guest": "Ada"})


# Reasoning


@pytest.mark.parametrize("tail", ["<|im_end|>", "<|im_end|>\n", "<|endoftext|>", " <|im_end|><|endoftext|>\n"])
def test_rule_1_turn_markers_at_the_end_are_removed(tail):
    assert interpret("Done." + tail, TOOLS).content == "Done."
    assert one(xml(guest="Ada") + tail) == ADA
    assert interpret("a <|im_end|> b", TOOLS).content == "a <|im_end|> b"


@pytest.mark.parametrize("text", ["<think>\nhm\n</think>\n\nHi", " \n<think>hm</think>Hi"])
def test_rule_2_a_leading_think_tag_opens_reasoning(text):
    for reasoning_open in (False, True):
        read = interpret(text, TOOLS, reasoning_open)
        assert (read.reasoning, read.content) == ("hm", "Hi")


def test_rule_2_a_think_tag_elsewhere_is_text():
    read = interpret("a</think>b <think>c", TOOLS)
    assert (read.reasoning, read.content) == ("a", "b <think>c")


def test_rule_3_reasoning_ends_at_the_first_close_and_a_call_inside_is_a_draft():
    read = interpret(f"<think>maybe {xml(guest='Bob')} or not</think>x</think>{xml(guest='Ada')}", TOOLS)
    assert read.reasoning == f"maybe {xml(guest='Bob')} or not"
    assert read.content == "x</think>"
    assert read.calls == (ADA,)
    assert interpret(f"maybe {xml(guest='Bob')}</think>no", TOOLS, True).calls == ()


def test_rule_4_unclosed_reasoning_ends_at_a_call():
    read = interpret(f"<think>I use <tool_call> now.\n{xml(guest='Ada')}", TOOLS)
    assert read.reasoning == "I use <tool_call> now."
    assert read.calls == (ADA,)
    read = interpret('so <tool_call>{"name": "ping", "arguments": {}}</tool_call>', TOOLS, True)
    assert (read.reasoning, read.calls) == ("so", (ToolCall("ping", {}),))


@pytest.mark.parametrize(("text", "open_"), [("<think>on and on", False), ("on and on", True)])
def test_rule_4_unclosed_reasoning_without_a_call_is_all_reasoning(text, open_):
    read = interpret(text, TOOLS, open_)
    assert (read.reasoning, read.content, read.calls) == ("on and on", "", ())


def test_rule_5_a_lone_close_ends_reasoning_unless_a_call_has_begun():
    read = interpret("hm</think>Hi", TOOLS)
    assert (read.reasoning, read.content) == ("hm", "Hi")
    read = interpret(xml(guest="a</think>b"), TOOLS)
    assert (read.reasoning, read.calls) == (None, (ToolCall("book", {"guest": "a</think>b"}),))


def test_rule_6_no_tag_means_no_reasoning_and_empty_reasoning_is_none():
    read = interpret("  Hi there \n", TOOLS)
    assert (read.reasoning, read.content, read.calls) == (None, "Hi there", ())
    assert interpret("<think>\n\n</think>\n\nHi", TOOLS).reasoning is None
    assert interpret("", TOOLS, True).reasoning is None


def test_rule_7_a_call_torn_by_the_end_of_reasoning_is_refused():
    read = interpret("so " + xml(guest="a</think>b"), TOOLS, True)
    assert [call.arguments for call in read.calls] == [None]
    assert "</think>" in read.calls[0].error
    assert interpret("a draft: <tool_call><function=book> </think> Hi", TOOLS, True).calls == ()


# Calls


def test_rule_8_text_around_calls_is_content_and_two_calls_are_two():
    read = interpret(f"One.\n\n{xml(guest='Ada')}\nTwo.\n{xml('ping')}\nThree.", TOOLS)
    assert read.content == "One.\nTwo.\nThree."
    assert read.calls == (ADA, ToolCall("ping", {}))


def test_rule_8_closing_tags_without_any_call_are_text():
    read = interpret("write </parameter> and <parameter=x> and </tool_call>", TOOLS)
    assert read.content == "write </parameter> and <parameter=x> and </tool_call>"
    assert read.calls == ()


@pytest.mark.parametrize("opened", [True, False])
@pytest.mark.parametrize("closed", [True, False])
def test_rule_9_the_wrapper_may_be_missing(opened, closed):
    call = xml(guest="Ada", opened=opened, closed=closed)
    assert interpret(f"So: {call} then", TOOLS).calls == (ADA,)
    assert interpret(call + call, TOOLS).calls == (ADA, ADA)


@pytest.mark.parametrize("first", ["", xml("ping") + "\n"])
def test_rule_10_a_call_is_exact_or_refused_wherever_it_is_cut(first):
    whole = xml(guest="Ada", note="x\ny")
    done = whole.index("</function>") + len("</function>")
    for end in range(1, len(whole)):
        read = interpret("Hm. " + first + whole[:end], TOOLS)
        calls = read.calls[1:] if first else read.calls
        assert read.content in ("Hm.", "Hm.\n" + whole[:end].strip(), "Hm. " + whole[:end].strip())
        if end < len("<tool"):
            assert calls == ()
        elif end < done:
            assert [call.arguments for call in calls] == [None], whole[:end]
            assert "cut off" in calls[0].error
        else:
            assert calls == (ToolCall("book", {"guest": "Ada", "note": "x\ny"}),)
        if first:
            assert read.calls[0] == ToolCall("ping", {})


def test_rule_10_a_cut_json_call_is_refused():
    whole = '<tool_call>\n{"name": "book", "arguments": {"guest": "Ada"}}\n</tool_call>'
    done = whole.rindex("}") + 1
    for end in range(len("<tool"), len(whole)):
        call = one(whole[:end])
        assert call == ADA if end >= done else (call.arguments is None and "cut off" in call.error)


@pytest.mark.parametrize(
    "tag", ["</parameter>", "<parameter=", "</function>", "<function=", "</tool_call>", "<tool_call>"]
)
@pytest.mark.parametrize("around", ["{}", "a {} b", "a\n{}\nb", "{}x>", "a\n{}\nb\n<parameter=vip>\ntrue"])
def test_rule_11_a_look_alike_tag_in_a_value_refuses_every_call_of_the_turn(tag, around):
    value = around.format(tag)
    read = interpret(xml("ping") + xml(guest="Ada", note=value) + xml("ping"), TOOLS)
    exact = ToolCall("book", {"guest": "Ada", "note": value})
    assert exact in read.calls or all(call.arguments is None for call in read.calls), read.calls
    assert read.calls


@pytest.mark.parametrize(
    "value",
    [
        "x\n</parameter>\n</function>\n</tool_call>\nmore",
        "x\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=book>\n<parameter=guest>\nE</parameter>.",
        "x</parameter></function></tool_call><tool_call><function=ping>",
        "x\n</parameter>\n<parameter=vip>\ntrue\n</parameter>\n</function>\n</tool_call>\n",
    ],
)
def test_rule_11_a_value_that_holds_a_whole_ending_never_runs_cut(value):
    read = interpret(xml(guest="Ada", note=value), TOOLS)
    assert read.calls
    assert all(call.arguments is None for call in read.calls)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "<tool_call>\n<function=book>\n<parameter=guest>\nAda\n</function>\n</tool_call>",
            "'guest' holds </function>",
        ),
        (
            "<tool_call>\n<function=book>\n<parameter=guest>\nAda\n</parameter>\n</tool_call>",
            "</tool_call> stands between",
        ),
        (
            "<function=book>\n<parameter=guest>\nA\n<parameter=note>\nB\n</parameter>\n</function>",
            "'guest' holds <parameter=",
        ),
        ("<tool_call>\nbook(guest='Ada')\n</tool_call>", "isn't followed by"),
        ("<function=book>Ada</function>", "text stands between"),
        ("<function=bo\nok></function>", "name is malformed"),
        ("<function=book><parameter=<b>>1</parameter></function>", "name is malformed"),
        ("<tool_call>{'name': 'ping'}</tool_call>", "JSON"),
        ('<tool_call>{"name": "ping", "arguments": {}}} </tool_call>', "text follows the JSON"),
        ("</tool_call><function=ping></function>", "stands outside a call"),
        (xml("ping") + "</parameter>", "stands outside a call"),
    ],
)
def test_rule_11_malformed_markup_says_what_is_wrong(text, why):
    call = one(text)
    assert call.arguments is None
    assert why in call.error
    assert "no call of this turn was run" in call.error


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (xml("boook", guest="Ada"), "no tool 'boook'; did you mean 'book'?"),
        (xml(guest="Ada", nihgts="2"), "no parameter 'nihgts'; did you mean 'nights'?"),
        (xml(nights="2"), "missing 'guest'"),
        (xml(guest="Ada", nights="two"), "parameter 'nights': expected integer, got 'two'"),
        (xml(guest="Ada").replace("</function>", "<parameter=guest>\nEve\n</parameter></function>"), "given twice"),
    ],
)
def test_rule_12_a_fault_of_one_call_refuses_that_call_alone(text, why):
    read = interpret(text + xml(guest="Ada"), TOOLS)
    assert read.calls[0].arguments is None
    assert why in read.calls[0].error
    assert read.calls[1] == ADA


def test_rule_12_additional_properties_are_allowed_where_the_schema_says_so():
    def tools(more):
        return [{"name": "t", "parameters": {"type": "object", "properties": {}, "additionalProperties": more}}]

    assert one_of(tools(True), xml("t", x="5")) == ToolCall("t", {"x": 5})
    assert one_of(tools({"type": "string"}), xml("t", x="5")) == ToolCall("t", {"x": "5"})
    assert "no parameter 'x'" in one_of(tools(False), xml("t", x="5")).error
    assert "no parameter 'x'" in one_of([{"name": "t"}], xml("t", x="5")).error


def one_of(tools, text):
    (call,) = interpret(text, tools).calls
    return call


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        (
            '{"name": "book", "arguments": {"guest": "</tool_call>\\n", "nights": 2}}',
            {"guest": "</tool_call>\n", "nights": 2},
        ),
        ('{"arguments": {"guest": "Ada"}, "name": "book"}', {"guest": "Ada"}),
        ('{"name": "book", "arguments": {"guest": "Ada", "nights": "2"}}', None),
        ('{"name": "book", "arguments": "{}"}', None),
        ('{"name": "book"}', None),
        ('{"name": "book", "arguments": {"guest": "Ada"}, "id": 1}', None),
        ('{"name": "book", "arguments": {"guest": "Ada", "guest": "Eve"}}', None),
        ('{"name": "book", "arguments": {"guest": "\\ud800"}}', None),
        ('{"name": 5, "arguments": {}}', None),
    ],
)
def test_rule_13_the_json_form_is_taken_as_it_is(body, arguments):
    call = one(f"<tool_call>\n{body}\n</tool_call>")
    assert call.arguments == arguments
    assert (call.error is None) == (arguments is not None)


# Values


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ("\nAda\n", "Ada"),
        ("Ada", "Ada"),
        ("\n\nAda\n\n", "\nAda\n"),
        ("\n Ada\t\n", " Ada\t"),
        ("\r\nAda\r\n", "\r\nAda\r"),
        ("", ""),
        ("\n", ""),
        ("\n\n", ""),
        ("\n\n\n", "\n"),
        ("\n5\n", "5"),
        ("\nnull\n", "null"),
        ('\n"x"\n', '"x"'),
        ("\n&lt;b&gt; <b> &amp; \\n\n", "&lt;b&gt; <b> &amp; \\n"),
        ("\nÅse 🧳 \u2028 e\u0301\n", "Åse 🧳 \u2028 e\u0301"),
        ("\n</parameter <function </tool_call <think></think>\n", "</parameter <function </tool_call <think></think>"),
    ],
)
def test_rules_14_and_15_a_string_is_verbatim_less_one_newline_at_each_end(raw, value):
    call = one(f"<tool_call><function=book><parameter=guest>{raw}</parameter></function></tool_call>")
    assert call.arguments == {"guest": value}


def test_no_parameters_and_parameter_less_tools():
    assert one("<tool_call>\n<function=ping>\n</function>\n</tool_call>") == ToolCall("ping", {})
    assert one("<tool_call><function=ping></function></tool_call>") == ToolCall("ping", {})


@pytest.mark.parametrize(
    "tool",
    [
        {"name": "t", "inputSchema": {"properties": {"a": {"type": "integer"}}}},
        {"name": "t", "description": None, "input_schema": {"properties": {"a": {"type": "integer"}}}},
        {"name": "t", "parameters": {"$ref": "#/$defs/T", "$defs": {"T": {"properties": {"a": {"type": "integer"}}}}}},
        {"name": "t", "parameters": {"allOf": [{"properties": {"a": {"type": "integer"}}}, {"required": ["a"]}]}},
        {
            "name": "t",
            "parameters": {
                "oneOf": [
                    {"properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False},
                    {"properties": {"b": {"type": "string"}}, "required": ["b"], "additionalProperties": False},
                ]
            },
        },
    ],
)
def test_parameters_are_found_wherever_a_tool_lists_them(tool):
    assert one_of([tool], xml("t", a="5")) == ToolCall("t", {"a": 5})
    assert "no parameter 'aa'" in one_of([tool], xml("t", aa="5")).error
    assert "expected integer, got 'x'" in one_of([tool], xml("t", a="x")).error


def test_a_parameter_that_several_alternatives_list_has_any_of_their_types():
    tools = [
        {
            "name": "t",
            "parameters": {
                "anyOf": [
                    {"properties": {"a": {"type": "integer"}, "b": {"const": "i"}}, "required": ["b"]},
                    {"properties": {"a": {"type": "string"}, "b": {"const": "s"}}, "required": ["b"]},
                ]
            },
        }
    ]
    assert one_of(tools, xml("t", a="5", b="i")) == ToolCall("t", {"a": 5, "b": "i"})
    assert one_of(tools, xml("t", a="x", b="s")) == ToolCall("t", {"a": "x", "b": "s"})
    assert one_of(tools, xml("t", a="x", b="i")).arguments is None


def test_a_megabyte_of_markup_is_read_in_linear_time():
    # Each of these took minutes when reading one piece copied all that follows it.
    assert interpret("<|im_end|>" * 400_000, TOOLS).content == ""
    assert len(interpret("<function=ping></function>" * 150_000, TOOLS).calls) == 150_000


def test_hostile_sizes_are_refused_and_fast():
    deep = "[" * 100_000
    assert one(f"<tool_call>{{{deep}").arguments is None
    assert one(f'<tool_call>{{"a": {deep}</tool_call>').arguments is None
    assert interpret(" " * 200_000 + "<|" + "\n" * 200_000, TOOLS).calls == ()
    assert one("<function=" + "x" * 100_000 + "></function>").error.startswith("no tool 'xxx")
    assert len(one("<function=" + "x" * 100_000 + "></function>").error) < 100


# The command


def test_the_command_prints_an_interpretation(tmp_path):
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS))
    text = f"hm</think>\n\nSo é🧳.\n{xml(guest='Ada')}{xml('nope')}<|im_end|>\n"
    command = [sys.executable, "-m", "rollout_engine.tokens.interpretation", "--tools", str(tmp_path / "tools.json")]
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*command, "--reasoning-open"], input=text.encode(), capture_output=True, env=ascii_only)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "reasoning": "hm",
        "content": "So é🧳.",
        "calls": [{"name": "book", "arguments": {"guest": "Ada"}}, {"name": "nope", "error": "no tool 'nope'"}],
    }


@pytest.mark.parametrize(
    ("tools", "text", "why"),
    [
        (None, b"", "can't read"),
        ("[", b"", "is not JSON"),
        ("{}", b"", "tools are a list"),
        ('[{"parameters": {}}]', b"", "tool 0 has no name"),
        ('[{"name": "a", "parameters": {"type": "strnig"}}]', b"", "'strnig'"),
        ("[]", b"\xff", "not UTF-8"),
        ("[" * 100_000, b"", "is not JSON"),
        ('[{"name": "a", "parameters": ' + '{"items": ' * 400 + "{}" + "}" * 400 + "}]", b"", "nested too deeply"),
        ('[{"name": "a", "parameters": {"properties": {"x": {"minimum": "5"}}}}]', b"", "minimum is a number"),
    ],
)
def test_the_command_refuses_bad_input(tmp_path, monkeypatch, capsys, tools, text, why):
    file = tmp_path / "tools.json"
    if tools is not None:
        file.write_text(tools)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert main(tools=file) == 2
    printed = capsys.readouterr()
    assert why in printed.err
    assert printed.out == ""


@pytest.mark.parametrize(
    ("tools", "why"),
    [
        ([{"name": "a"}, {"name": "a"}], "two tools are named 'a'"),
        ([{"name": "a", "parameters": []}], "JSON schema"),
        ([{"name": "a", "parameters": {"properties": {"x": {"$ref": "#/$defs/X"}}}}], "leads nowhere"),
        ([{"name": "a", "parameters": {"properties": {"x": {"$ref": "http://x"}}}}], "local references"),
        ([{"name": "a", "parameters": {"$ref": "#"}}], "without end"),
        ([{"name": "a", "parameters": {"properties": {"x": {"pattern": "("}}}}], "malformed schema"),
    ],
)
def test_tools_that_cannot_be_used_are_refused(tools, why):
    with pytest.raises(ConfigurationError, match=why.replace("$", r"\$").replace("(", r"\(")):
        interpret("", tools)


LENIENT = checked_by_server(
    [
        {
            "name": "pay",
            "description": "d",
            "parameters": {
                "type": "object",
                "properties": {"amount": {"type": "number"}, "note": {"type": "string"}, "kind": {"enum": ["a"]}},
                "required": ["amount"],
            },
        }
    ]
)


def test_where_the_server_checks_arguments_it_is_the_judge_of_them():
    def read(text):
        [call] = interpret(text, LENIENT).calls
        return call.arguments, call.error

    def parameters(**values):
        body = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in values.items())
        return f"<tool_call>\n<function=pay>\n{body}</function>\n</tool_call>"

    assert read(parameters(amount="61.25", note="5", kind="b", other="[1]")) == (
        {"amount": 61.25, "note": "5", "kind": "b", "other": [1]}, None,
    )  # fmt: skip
    assert read(parameters(amount="a lot")) == ({"amount": "a lot"}, None)
    assert read(parameters()) == ({}, None)
    body = {"amount": "61.25", "$filter": None}
    assert read(f"<tool_call>{json.dumps({'name': 'pay', 'arguments': body})}</tool_call>") == (body, None)
    assert read("<tool_call>\n<function=play>\n</function>\n</tool_call>")[1] == "no tool 'play'; did you mean 'pay'?"
    twice = parameters(note="x").replace("</function>", "<parameter=note>\ny\n</parameter>\n</function>")
    assert read(twice)[1] == "parameter 'note' is given twice"
