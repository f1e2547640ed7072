"""The part of Typesense's ``filter_by`` language that stands without parentheses.

Invariant: an expression is either understood whole or refused; a filter is never ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Predicate = Callable[[Mapping[str, Any]], bool]
_CLAUSE = re.compile(r"\s*([\w.]+)\s*:\s*(!?)(=?)\s*(.+?)\s*", re.DOTALL)


class FilterError(ValueError):
    """An expression that isn't understood."""


def parse_filter(expression: str) -> Predicate:
    """``field:=value``, ``field:value``, ``field:[a, b]``, ``field:!=value``, joined by ``&&`` and, weaker, ``||``.

    With ``=`` the field equals the value, without it contains it as a word; a list field does if an element does.
    """
    if not expression.strip():
        return lambda document: True
    alternatives = [[_clause(clause) for clause in part.split("&&")] for part in expression.split("||")]
    return lambda document: any(all(clause(document) for clause in clauses) for clauses in alternatives)


def _clause(text: str) -> Predicate:
    match = _CLAUSE.fullmatch(text)
    if match is None or text.lstrip().startswith("(") or match[4][0] in "<>(":
        raise FilterError(f"the embedded knowledge search doesn't understand the filter clause {text.strip()!r}")
    field, negated, exact, operand = match.groups()
    inner = operand[1:-1].split(",") if operand.startswith("[") and operand.endswith("]") else [operand]
    wanted = [value.strip().strip("`") for value in inner]

    def holds(document: Mapping[str, Any]) -> bool:
        value = document.get(field)
        elements = [_text(element) for element in (value if isinstance(value, list) else [value])]
        if exact or negated:
            found = any(element == value for element in elements for value in wanted)
        else:
            found = any(_contains(element, value) for element in elements for value in wanted)
        return found != bool(negated)

    return holds


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _contains(text: str, words: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(words.casefold())}(?!\w)", text.casefold()) is not None
