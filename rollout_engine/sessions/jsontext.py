"""JSON as servers and clients write it, and as it can be sent on.

Invariant: what :func:`read` gives can be written as UTF-8. JSON may name half of a surrogate pair, which no encoding
holds: it is read as a question mark.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def read(data: bytes) -> Any:
    """Data of any depth that Python can hold, NaN and integers of any size included. Raises ValueError."""
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        return _read_all(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _read_all(data: bytes) -> Any:
    value = read_unchanged(data)
    if _SURROGATE.search(data):
        value = json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    return value


def read_unchanged(data: bytes | str) -> Any:
    """With the lone surrogates, for those who only look at it or pass it on in ASCII. Raises ValueError."""
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read_text(text: str) -> Any:
    """As :func:`read`."""
    return read(text.encode(errors="replace"))


def write(value: Any) -> bytes:
    """Raises ValueError, which says why it can't be written."""
    try:
        data = msgspec.json.encode(value)
        if b"null" in data:  # which is what becomes of a number that isn't finite
            json.dumps(value, allow_nan=False, default=str)
        return data
    except UnicodeEncodeError as error:
        raise ValueError("a text in it holds half of a surrogate pair, which UTF-8 can't say") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except TypeError as error:
        raise ValueError(str(error)) from error
    except ValueError as error:
        raise ValueError("a number in it is NaN or infinite, which JSON can't say") from error
