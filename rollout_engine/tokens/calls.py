"""Finds tool calls in the text of a turn, as written, before any typing.

Invariant: a value found here is exactly the characters between its tags (less one newline at each end),
or its call carries a fault. A raw value can't hold one of the six tags of the call syntax; where a tag
stands out of place, some value may have held tags and no boundary in the turn can be trusted, so the
whole turn is in *doubt*. The rules are written in :mod:`rollout_engine.tokens.interpretation`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from rollout_engine.tokens.values import ValueRefused, decode_json_prefix

TAG = re.compile(r"<tool_call>|</tool_call>|<function=|</function>|<parameter=|</parameter>")
_NAME = re.compile(r"([^<>\n]+)>")
_SPACE = re.compile(r"[ \t\r\n]*")
_OPENERS = ("<tool_call>", "<function=")
_SHORTEST_CUT = 5
"""Characters of a tag that make a cut-off opening recognisable at the end of a text: ``<tool``, ``<func``."""


@dataclass(slots=True)
class WrittenCall:
    """One call as written: raw parameters in order, or a JSON body's arguments, or a fault."""

    name: str = ""
    parameters: list[tuple[str, str]] = field(default_factory=list)
    body: dict[str, Any] | None = None
    fault: str | None = None


@dataclass(slots=True)
class Markup:
    """``text``: what stands outside the calls. ``doubt``: why no call of this turn can be trusted."""

    text: str
    calls: list[WrittenCall]
    doubt: str | None = None


class _Cut(Exception):
    """The text ends inside a call."""


class _Doubt(Exception):
    """A tag or text stands where the syntax has no place for it."""


def find_calls(text: str) -> Markup:
    """Parse a turn's text after its reasoning; never raises."""
    outside: list[str] = []
    calls: list[WrittenCall] = []
    at = 0
    while tag := TAG.search(text, at):
        if tag.group() not in _OPENERS:
            return _stray(text, tag, outside, calls, at)
        outside.append(text[at : tag.start()])
        call = WrittenCall()
        calls.append(call)
        try:
            at = _read_call(text, tag, call)
        except _Cut:
            call.fault = "the call was cut off before its end"
            return Markup(_join(outside), calls)
        except _Doubt as doubt:
            return Markup(_join(outside), calls, str(doubt))
    rest = text[at:]
    cut = _cut_opening(rest)
    if cut:
        rest = rest[:-cut]
        calls.append(WrittenCall(fault="the call was cut off before its end"))
    return Markup(_join([*outside, rest]), calls)


def _stray(text: str, tag: re.Match[str], outside: list[str], calls: list[WrittenCall], at: int) -> Markup:
    """A closing or parameter tag outside a call: in doubt if the turn holds a call, else plain text."""
    opening = re.compile("|".join(_OPENERS)).search(text, tag.end())
    if not calls and not opening:
        return Markup(text.strip(), [])
    if not calls:
        name = re.compile(r"<function=([^<>\n]+)>").search(text, opening.start())
        calls = [WrittenCall(name.group(1) if name else "")]
    outside.append(text[at : tag.start()])
    return Markup(_join(outside), calls, f"{tag.group()} stands outside a call")


def _read_call(text: str, tag: re.Match[str], call: WrittenCall) -> int:
    """Fill ``call`` from its opening tag on; returns the position after it."""
    at = tag.end()
    if tag.group() == "<tool_call>":
        at = _skip(text, at)
        if text.startswith("{", at):
            return _read_json(text, at, call)
        if not text.startswith("<function=", at):
            _cut_if_prefix(text, at, "<function=")
            raise _Doubt("<tool_call> isn't followed by <function=NAME>")
        at += len("<function=")
    call.name, at = _read_name(text, at, "function")
    while True:
        at = _skip(text, at)
        if text.startswith("</function>", at):
            at += len("</function>")
            break
        if not text.startswith("<parameter=", at):
            _cut_if_prefix(text, at, "</function>", "<parameter=")
            found = TAG.match(text, at)
            raise _Doubt(f"{found.group() if found else 'text'} stands between the parameters of a call")
        name, at = _read_name(text, at + len("<parameter="), "parameter")
        end = TAG.search(text, at)
        if end is None:
            raise _Cut
        if end.group() != "</parameter>":
            raise _Doubt(f"the value of {name[:40]!r} holds {end.group()}, or its </parameter> is missing")
        call.parameters.append((name, _trim(text[at : end.start()])))
        at = end.end()
    return _skip_closer(text, at)


def _read_name(text: str, at: int, what: str) -> tuple[str, int]:
    found = _NAME.match(text, at)
    if found:
        return found.group(1), found.end()
    if not re.search(r"[<>\n]", text[at:]):
        raise _Cut
    raise _Doubt(f"a {what}'s name is malformed")


def _read_json(text: str, at: int, call: WrittenCall) -> int:
    try:
        body, end = decode_json_prefix(text, at)
    except ValueRefused as refused:
        if "</tool_call>" not in text[at:]:
            raise _Cut from None
        raise _Doubt(f"the JSON of a call can't be read: {refused}") from None
    after = _skip(text, end)
    closed = _skip_closer(text, end)
    if closed == end and after < len(text):
        raise _Doubt("text follows the JSON of a call inside its <tool_call>")
    name = body.get("name")
    if isinstance(name, str):
        call.name = name
    if set(body) != {"name", "arguments"} or not isinstance(name, str) or not isinstance(body["arguments"], dict):
        call.fault = 'a JSON call is {"name": NAME, "arguments": {…}} and nothing else'
    else:
        call.body = body["arguments"]
    return closed


def _skip(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()


def _skip_closer(text: str, at: int) -> int:
    """Past ``</tool_call>``, or what a cut has left of it; else ``at``: the call is complete without it."""
    after = _skip(text, at)
    if text.startswith("</tool_call>", after):
        return after + len("</tool_call>")
    rest = text[after : after + len("</tool_call>")]
    return len(text) if rest and "</tool_call>".startswith(rest) else at


def _cut_if_prefix(text: str, at: int, *tags: str) -> None:
    rest = text[at:]
    if any(tag.startswith(rest) for tag in tags):
        raise _Cut


def _cut_opening(rest: str) -> int:
    """Length of a cut-off opening tag at the end of ``rest``."""
    for tag in _OPENERS:
        for length in range(len(tag) - 1, _SHORTEST_CUT - 1, -1):
            if rest.endswith(tag[:length]):
                return length
    return 0


def _trim(raw: str) -> str:
    raw = raw[1:] if raw.startswith("\n") else raw
    return raw[:-1] if raw.endswith("\n") else raw


def _join(pieces: list[str]) -> str:
    return "\n".join(filter(None, (piece.strip() for piece in pieces)))
