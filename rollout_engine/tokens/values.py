"""Reads the text of one argument as a value of its schema.

Invariant: the result is exactly what was written, or :class:`ValueRefused` says why not. Nothing is
rounded to fit a type, no number becomes NaN or infinite, no repeated key is dropped. The rules are
written in :mod:`rollout_engine.tokens.interpretation`.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from rollout_engine.tokens.schema import Schema

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.0+)?")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_SPACE = " \t\r\n"
_WORDS = {"true": True, "True": True, "false": False, "False": False}
_MAX_DEPTH = 100
_SHOWN = 40


class ValueRefused(ValueError):
    """A text that isn't exactly one value of its schema; the message is for the agent."""


def read_value(text: str, schema: Schema) -> Any:
    """The value written as ``text``; raises :class:`ValueRefused`."""
    if "string" not in schema.types:
        value = _read_typed(text.strip(_SPACE), schema.types)
    else:
        value = text
        if len(schema.types) > 1:
            try:
                other = decode_json(text)
            except ValueRefused:
                pass
            else:
                if not isinstance(other, str) and schema.problem(other) is None:
                    return other
    problem = schema.problem(value)
    if problem:
        raise ValueRefused(problem)
    return value


def decode_json(text: str) -> Any:
    """Strict JSON without space around it; raises :class:`ValueRefused`."""
    value, end = decode_json_prefix(text, 0)
    if end != len(text):
        raise ValueRefused("text follows the JSON value")
    return value


def decode_json_prefix(text: str, start: int) -> tuple[Any, int]:
    """One strict JSON value at ``start`` and the position after it; raises :class:`ValueRefused`."""
    try:
        value, end = _DECODER.raw_decode(text, start)
    except RecursionError:
        raise ValueRefused("JSON nested too deeply") from None
    except ValueRefused:
        raise
    except json.JSONDecodeError as error:
        raise ValueRefused(f"not JSON ({error.msg})") from None
    except ValueError:
        raise ValueRefused("a number with too many digits") from None
    if isinstance(value, (dict, list)) and _deeper(value, _MAX_DEPTH):
        raise ValueRefused("JSON nested too deeply")
    if _SURROGATE.search(text, start, end) and _broken(value):
        raise ValueRefused("JSON with half of a surrogate pair")
    return value, end


def _read_typed(text: str, types: frozenset[str]) -> Any:
    if "null" in types and text in ("null", "None"):
        return None
    if "boolean" in types and text in _WORDS:
        return _WORDS[text]
    if "number" in types and _NUMBER.fullmatch(text):
        return _number(text)
    if "integer" in types and _INTEGER.fullmatch(text):
        return _integer(text.partition(".")[0])
    if ("object" in types and text.startswith("{")) or ("array" in types and text.startswith("[")):
        return decode_json(text)
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    raise ValueRefused(f"expected {' or '.join(sorted(types)) or 'nothing'}, got {shown!r}")


def _number(text: str) -> int | float:
    if "." not in text and "e" not in text and "E" not in text:
        return _integer(text)
    return _finite(text)


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:  # Python's bound on the digits of an integer
        raise ValueRefused("a number with too many digits") from None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueRefused(f"{text} is too large a number")
    return value


def _constant(text: str) -> Any:
    raise ValueRefused(f"{text} is not JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueRefused("JSON with a repeated key")
    return out


def _deeper(value: Any, depth: int) -> bool:
    if not isinstance(value, (dict, list)):
        return False
    return depth == 0 or any(_deeper(v, depth - 1) for v in (value.values() if isinstance(value, dict) else value))


def _broken(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_finite, parse_int=_integer, parse_constant=_constant
)
