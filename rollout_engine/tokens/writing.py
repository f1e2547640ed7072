"""Writes calls and turns so that interpreting them gives them back.

Invariant: ``interpret(render_call(call), tools).calls == (call,)`` for any arguments that the tool's
schema allows. A call is written in the XML form where that form is exact, else as one JSON object in
which every ``<`` and ``>`` is escaped, so that no text in it can look like a tag or a token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from protocol.records import Message, ToolCall
from rollout_engine.tokens.calls import TAG, find_calls
from rollout_engine.tokens.reasoning import split_reasoning
from rollout_engine.tokens.schema import same
from rollout_engine.tokens.toolset import ToolSet, prepare
from rollout_engine.tokens.values import ValueRefused, decode_json, read_value

_THINK = "<think>\n"
_NAME = re.compile(r"[^<>\n]+")
_MARK = re.compile(TAG.pattern + r"|</?think>|<\|")


def render_call(call: ToolCall, tools: Sequence[Mapping[str, Any]] | ToolSet | None = None) -> str:
    """One call as text.

    Without ``tools`` a string that reads as JSON (``5``, ``null``) takes the JSON form, since the schema
    may admit that type too; with ``tools`` only where that is so. Raises ``ValueError`` for a refused call.
    """
    if call.arguments is None:
        raise ValueError(f"a refused call can't be written: {call.error}")
    exact = _plain(call) and all(_exact(name, value, call.name, tools) for name, value in call.arguments.items())
    return _xml(call) if exact else _json(call)


def render_turn(
    message: Message, tools: Sequence[Mapping[str, Any]] | ToolSet | None = None, reasoning_open: bool = False
) -> str:
    """An assistant message as text, without its closing token.

    Raises ``ValueError`` when interpreting that text wouldn't give the message back (white space around
    its reasoning and content aside).
    """
    if message.role != "assistant":
        raise ValueError(f"only assistant messages are written as turns, not {message.role}")
    reasoning, content = (message.reasoning or "").strip(), message.content.strip()
    text = "\n".join(part for part in (content, *(render_call(call, tools) for call in message.calls)) if part)
    if reasoning or reasoning_open:
        text = f"{'' if reasoning_open else _THINK}{reasoning}\n</think>\n\n{text}"
    read, rest = split_reasoning(text, reasoning_open)
    markup = find_calls(rest)
    same_text = ((read or "").strip(), markup.text) == (reasoning, content)
    if not same_text or markup.doubt or len(markup.calls) != len(message.calls) or "<|" in reasoning + content:
        raise ValueError("a turn's reasoning or content holds a tag of the syntax, so it can't be written")
    return text


def _xml(call: ToolCall) -> str:
    lines = ["<tool_call>", f"<function={call.name}>"]
    for name, value in call.arguments.items():
        lines += [f"<parameter={name}>", _raw(value), "</parameter>"]
    return "\n".join([*lines, "</function>", "</tool_call>"])


def _json(call: ToolCall) -> str:
    body = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
    return "<tool_call>\n" + body.replace("<", "\\u003c").replace(">", "\\u003e") + "\n</tool_call>"


def _raw(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _plain(call: ToolCall) -> bool:
    """Whether neither a name nor a value can be taken for a tag."""
    return all(_NAME.fullmatch(name) for name in (call.name, *call.arguments)) and not any(
        _MARK.search(_raw(value)) for value in call.arguments.values()
    )


def _exact(name: str, value: Any, call: str, tools: Sequence[Mapping[str, Any]] | ToolSet | None) -> bool:
    """Whether the raw text of a value reads as that value."""
    if tools is None:
        # 1e+22 is an integer to a schema, but no integer's text.
        return "e" not in repr(value) if isinstance(value, float) else not _reads_as_json(value)
    tool = prepare(tools).tools.get(call)
    schema = tool and tool.properties.get(name, tool.extra)
    try:
        return schema is not None and same(read_value(_raw(value), schema), value)
    except ValueRefused:
        return False


def _reads_as_json(value: Any) -> bool:
    """Whether a string's text may be read as a value of another type."""
    if not isinstance(value, str):
        return False
    try:
        decode_json(value)
    except ValueRefused:
        return False
    return True
