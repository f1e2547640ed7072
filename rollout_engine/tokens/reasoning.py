"""Splits a sampled turn into reasoning and the rest.

Invariant: nothing is lost. Every character is reasoning or rest, apart from the tags themselves. The
rules are written in :mod:`rollout_engine.tokens.interpretation`.
"""

from __future__ import annotations

import re

_CLOSE = "</think>"
_CALL = re.compile(r"<tool_call>\s*(?:<function=|\{)")
_LEADING = re.compile(r"\s*<think>")


def split_reasoning(text: str, reasoning_open: bool) -> tuple[str | None, str]:
    """(reasoning or None, rest), neither stripped; ``reasoning_open``: the prompt ended inside ``<think>``."""
    leading = _LEADING.match(text)
    if leading:
        text, reasoning_open = text[leading.end() :], True
    close = text.find(_CLOSE)
    call = _CALL.search(text) if close < 0 or not reasoning_open else None
    if reasoning_open:
        if close >= 0:
            return text[:close], text[close + len(_CLOSE) :]
        return (text, "") if call is None else (text[: call.start()], text[call.start() :])
    if close >= 0 and (call is None or close < call.start()):
        return text[:close], text[close + len(_CLOSE) :]
    return None, text


def has_open_call(reasoning: str) -> bool:
    """Whether a call begins in the reasoning and isn't closed in it."""
    begun = [match.end() for match in _CALL.finditer(reasoning)]
    return bool(begun) and "</tool_call>" not in reasoning[begun[-1] :]
