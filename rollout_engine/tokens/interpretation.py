"""The one interpretation of what a policy wrote (rule 9): reasoning, content, tool calls.

Invariant: a value is exactly what was written, or its call is refused and the agent reads why as the
tool's error. Nothing raises on any text. The syntax is that of Qwen3-coder::

    <tool_call>
    <function=NAME>
    <parameter=P>
    value
    </parameter>
    </function>
    </tool_call>

and, equally, one JSON object: ``<tool_call>{"name": NAME, "arguments": {…}}</tool_call>``. The JSON form
is how *any* arguments can be written exactly, since a raw value can't hold a tag of the syntax.

Reasoning
 1. Turn markers (``<|im_end|>``, ``<|endoftext|>``) at the end of the text are removed first.
 2. Reasoning is open when the prompt ended inside ``<think>`` or the text begins with it (a repeated
    tag is dropped). ``<think>`` anywhere else is ordinary text.
 3. Open and ``</think>`` follows: reasoning up to the first one, whatever it holds. A call that was
    written inside is a draft and isn't run.
 4. Open and no ``</think>``: a call (``<tool_call>`` followed by ``<function=`` or ``{``) ends the
    reasoning; a bare ``<tool_call>`` doesn't. Without a call everything is reasoning, content is empty.
 5. Not open, and ``</think>`` comes before any call: reasoning is what stands before it. After a call
    has begun, ``</think>`` is ordinary text, so it may stand in a value.
 6. No tag and not open: no reasoning. Both parts lose the white space around them; empty reasoning is None.
 7. A call that begins inside the reasoning and is torn by a ``</think>`` (its closing tags come after) is refused.

Calls
 8. ``<tool_call>`` and ``<function=`` begin a call wherever they stand in the content; content is what
    stands outside the calls, before, between and after, joined by newlines. Closing tags without any call are text.
 9. A call without ``<tool_call>`` around it counts, and ``</tool_call>`` may be missing: ``</function>``
    has ended it. Every other closing tag is needed: a missing ``</parameter>`` or ``</function>`` isn't made
    up, since what stands for it may be part of a value that goes on, and rule 10 or 11 refuses the call.
10. A text that ends inside a call (in a name, in a value, before ``</function>``): that call is refused
    as cut off; those before it stand.
11. A tag out of place (a value that holds one of the six tags or lacks its ``</parameter>``; a closing
    tag or text where none belongs; a name with ``<`` or a newline): some value may have been written with
    tags in it and no boundary can be trusted, so **every call of the turn** is refused. (Where such a value
    happens to spell a whole well-formed continuation, the text *is* that continuation: nothing tells them apart.)
12. Unknown tool, unknown or repeated parameter, missing required parameter, a value that its schema
    refuses: that call alone is refused. A parameter that the schema doesn't list is unknown unless
    ``additionalProperties`` is there and isn't false.
    Where the server of the tools checks arguments itself, it is the judge of all these but an unknown tool and a
    repeated parameter: a value that its schema refuses goes to it as rule 17 reads a value without a type.
13. JSON form: exactly the keys ``name`` and ``arguments``; values are taken as they are and checked, never converted.

Values
14. Exactly one newline is removed at each end of a raw value, if there is one. All other white space counts.
15. Type string: the text, verbatim. ``5``, ``null``, ``true`` and ``"x"`` are strings.
16. No string among the types: white space around is ignored; ``null``/``None``; ``true``/``True``/``false``/
    ``False``; integers ``-?(0|[1-9][0-9]*)``, also ``5.0``, of up to 4300 digits; numbers as JSON writes them
    (an integer stays one); objects and arrays as strict JSON. Refused: ``+5``, ``007``, ``1_000``, ``yes``,
    NaN, Infinity, 1e999, Python literals, repeated keys, nesting beyond 100.
17. String among several types (nullable, unions, no type at all): a text that is JSON, with nothing
    around it, of another admitted type and valid, is that value; otherwise it is the string. So in a nullable
    string ``null`` is null, and the string "null" needs the JSON form.
18. anyOf, oneOf, allOf, enum, const and local $ref decide the admitted types and then check the value;
    at the root of a tool's schema they also list parameters.
19. An empty value is the empty string, or refused.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.records import ToolCall
from rollout_engine.errors import ConfigurationError
from rollout_engine.tokens.calls import TAG, WrittenCall, find_calls
from rollout_engine.tokens.reasoning import has_open_call, split_reasoning
from rollout_engine.tokens.schema import Schema
from rollout_engine.tokens.toolset import Tool, ToolSet, prepare
from rollout_engine.tokens.values import ValueRefused, read_value
from rollout_engine.tokens.writing import render_call, render_turn

__all__ = ["Interpretation", "interpret", "render_call", "render_turn"]

_MARKERS = ("<|im_end|>", "<|endoftext|>")
_REFUSED = "no call of this turn was run; a value that holds tags needs the JSON form of a call"
_SHOWN = 40
_ANY = Schema()


@dataclass(frozen=True, slots=True)
class Interpretation:
    reasoning: str | None
    content: str
    calls: tuple[ToolCall, ...]


def interpret(text: str, tools: Sequence[Mapping[str, Any]] | ToolSet, reasoning_open: bool = False) -> Interpretation:
    """Interpret one sampled turn; never raises on ``text``.

    Raises :class:`ConfigurationError` when ``tools`` can't be used; a list is compiled once.
    """
    toolset = prepare(tools)
    reasoning, rest = split_reasoning(_without_markers(text), reasoning_open)
    markup = find_calls(rest)
    if markup.doubt:
        calls = tuple(ToolCall(call.name, error=f"{markup.doubt}; {_REFUSED}") for call in markup.calls)
    else:
        calls = tuple(_typed(call, toolset) for call in markup.calls)
    if reasoning is not None:
        if not calls and has_open_call(reasoning) and TAG.search(rest):
            calls = (ToolCall("", error="a call was begun inside the reasoning and </think> tears it; call after it"),)
        reasoning = reasoning.strip() or None
    return Interpretation(reasoning, markup.text, calls)


def _without_markers(text: str) -> str:
    end = len(text)
    while True:
        at = end
        while at and text[at - 1].isspace():
            at -= 1
        marker = next((marker for marker in _MARKERS if text.endswith(marker, 0, at)), None)
        if marker is None:
            return text if end == len(text) else text[:at]
        end = at - len(marker)


def _typed(call: WrittenCall, toolset: ToolSet) -> ToolCall:
    if call.fault:
        return ToolCall(call.name, error=call.fault)
    tool = toolset.tools.get(call.name)
    if tool is None:
        return ToolCall(call.name, error=_unknown("tool", call.name, toolset.tools))
    try:
        if toolset.server_checks:
            arguments = call.body if call.body is not None else _read_loosely(call.parameters, tool)
            return ToolCall(call.name, arguments=arguments)
        arguments = call.body if call.body is not None else _read_parameters(call.parameters, tool)
        return ToolCall(call.name, arguments=_checked(arguments, tool))
    except ValueRefused as refused:
        return ToolCall(call.name, error=str(refused))


def _read_parameters(parameters: list[tuple[str, str]], tool: Tool) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for name, raw in parameters:
        schema = tool.properties.get(name, tool.extra)
        if schema is None:
            raise ValueRefused(_unknown("parameter", name, tool.properties))
        if name in arguments:
            raise ValueRefused(f"parameter {name[:_SHOWN]!r} is given twice")
        try:
            arguments[name] = read_value(raw, schema)
        except ValueRefused as refused:
            raise ValueRefused(f"parameter {name[:_SHOWN]!r}: {refused}") from None
    return arguments


def _read_loosely(parameters: list[tuple[str, str]], tool: Tool) -> dict[str, Any]:
    """Values as their schemas type them, and as they read without a type where a schema is missing or refuses."""
    arguments: dict[str, Any] = {}
    for name, raw in parameters:
        if name in arguments:
            raise ValueRefused(f"parameter {name[:_SHOWN]!r} is given twice")
        try:
            arguments[name] = read_value(raw, tool.properties.get(name) or tool.extra or _ANY)
        except ValueRefused:
            arguments[name] = read_value(raw, _ANY)
    return arguments


def _checked(arguments: dict[str, Any], tool: Tool) -> dict[str, Any]:
    for name in arguments:
        if name not in tool.properties and tool.extra is None:
            raise ValueRefused(_unknown("parameter", name, tool.properties))
    problem = tool.whole.problem(arguments)
    if problem:
        raise ValueRefused(problem)
    return arguments


def _unknown(kind: str, name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name[:_SHOWN], known, n=1, cutoff=0.5)
    return f"no {kind} {name[:_SHOWN]!r}" + (f"; did you mean {near[0]!r}?" if near else "")


def _read_tools(path: Path) -> ToolSet:
    try:
        return prepare(json.loads(path.read_text("utf-8")))
    except OSError as error:
        raise ConfigurationError(f"can't read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is not JSON: {error}") from error
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def main(*, tools: Path, reasoning_open: bool = False) -> int:
    """Interpret the text on standard input and print it as JSON.

    Parameters
    ----------
    tools
        JSON file with a list of tools: {name, description, parameters}, the OpenAI shape, or MCP's (inputSchema).
    reasoning_open
        The prompt ended inside <think>.
    """
    try:
        toolset = _read_tools(tools)
        text = sys.stdin.buffer.read().decode("utf-8")
    except ConfigurationError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except UnicodeDecodeError as error:
        print(f"error: standard input is not UTF-8: {error}", file=sys.stderr)
        return 2
    read = interpret(text, toolset, reasoning_open)
    calls = [
        {"name": call.name, "arguments": call.arguments}
        if call.error is None
        else {"name": call.name, "error": call.error}
        for call in read.calls
    ]
    out = json.dumps({"reasoning": read.reasoning, "content": read.content, "calls": calls}, ensure_ascii=False)
    sys.stdout.buffer.write(out.encode() + b"\n")  # UTF-8 as the input is, whatever the locale
    sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    import cyclopts

    sys.exit(cyclopts.App(name="interpretation", default_command=main)() or 0)
