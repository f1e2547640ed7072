"""What a judge's answer says.

Invariant: only an answer that says yes is a Yes; anything else is a No. One that says neither yes nor no in the form
that was asked for is a No that is not ``clear``, so that a judge that can't keep to the form is noticed.
"""

from __future__ import annotations

import json
import re

import msgspec

_PUNCTUATION = str.maketrans(dict.fromkeys(".,;:\n", " "))
_THINKING = re.compile(r"^.*</think>|<think>.*$", re.DOTALL)

UNREADABLE = "the answer could not be read"


class Answer(msgspec.Struct, frozen=True):
    """``value`` is the verdict, ``clear`` whether the model gave it in the form that was asked for."""

    value: bool
    clear: bool
    motivation: str = ""


def read_word(text: str) -> Answer:
    """An answer in one word: Yes where the first or the last word is "yes", whatever its case."""
    words = _THINKING.sub("", text).translate(_PUNCTUATION).lower().split()
    ends = {words[0], words[-1]} if words else set()
    return Answer("yes" in ends, clear=bool(ends & {"yes", "no"}))


def read_motivation(text: str) -> Answer:
    """An answer as JSON; its keys may lack their double quotes."""
    try:
        tree = json.loads(_with_quoted_keys(_THINKING.sub("", text)))
    except (ValueError, RecursionError):
        return Answer(False, clear=False, motivation=UNREADABLE)
    said = tree.get("answer") if isinstance(tree, dict) else None
    if isinstance(said, bool):
        return Answer(said, clear=True, motivation=_text(tree.get("motivation")))
    if not isinstance(said, str):
        return Answer(False, clear=False, motivation=UNREADABLE)
    word = read_word(said)
    return Answer(word.value, word.clear, _text(tree.get("motivation")))


def _with_quoted_keys(text: str) -> str:
    for key in ("answer", "motivation"):
        text = re.sub(rf"'{key}'\s*:", f'"{key}":', text)
        text = re.sub(rf"((?:^|[{{,])\s*){key}(\s*:)", rf'\1"{key}"\2', text)
    return text


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)
