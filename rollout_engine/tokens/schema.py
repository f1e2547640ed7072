"""JSON schemas, compiled once to functions.

Invariant: a schema is only ever asked two questions: which JSON types it admits, and what is wrong with
a value. Values are compared as JSON does: 1 equals 1.0, and true is not 1.

Understood: type, enum, const, anyOf, oneOf, allOf, not, local $ref, properties, required,
additionalProperties, min/maxProperties, items, prefixItems, min/maxItems, uniqueItems, min/maxLength,
pattern, minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf. Other keywords are left to
the backend.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

_LIST = ("enum", "required", "anyOf", "oneOf", "allOf", "prefixItems")
_NUMBER = (
    "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
)  # fmt: skip
_KEYWORDS: dict[str, tuple[type | tuple[type, ...], str]] = {
    **dict.fromkeys(_LIST, (list, "a list")),
    **dict.fromkeys(_NUMBER, ((int, float), "a number")),
    "type": ((str, list), "a type or a list of types"),
    "properties": (Mapping, "an object"),
    "$ref": (str, "a string"),
    "pattern": (str, "a string"),
}
"""What the value of a keyword must be: a schema is checked whole before any value is."""

TYPES = frozenset(("string", "integer", "number", "boolean", "null", "object", "array"))
_SHOWN = 40

Check = Callable[[Any], str | None]


class SchemaError(ValueError):
    """A schema that isn't one."""


class Schema:
    """``types``: JSON types admitted; ``problem(value)``: what is wrong with a value, or None."""

    __slots__ = ("_checks", "types")

    def __init__(self) -> None:
        self.types: frozenset[str] = TYPES
        self._checks: list[Check] = []

    def problem(self, value: Any) -> str | None:
        for check in self._checks:
            found = check(value)
            if found:
                return found
        return None


def compile_schema(schema: Any, root: Any = None) -> Schema:
    """Compile ``schema``, resolving local references in ``root``; raises :class:`SchemaError`."""
    return Compiler(schema if root is None else root).compile(schema)


class Compiler:
    """Compiles the parts of one document; a part that refers to itself is compiled once."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._done: dict[int, Schema] = {}

    def compile(self, schema: Any, around: tuple[int, ...] = ()) -> Schema:
        """``around``: the schemas that ask this one about the same value; a circle of them has no answer."""
        if isinstance(schema, bool):
            out = Schema()
            if not schema:
                out.types = frozenset()
                out._checks.append(lambda value: "no value is allowed here")
            return out
        if not isinstance(schema, Mapping):
            raise SchemaError(f"a schema is an object or a boolean, not {schema!r}")
        if id(schema) in around:
            raise SchemaError(f"a schema refers to itself without end: {str(schema)[:80]}")
        if id(schema) in self._done:
            return self._done[id(schema)]
        _check_keywords(schema)
        out = self._done[id(schema)] = Schema()
        try:
            self._fill(out, schema, (*around, id(schema)))
        except (TypeError, re.error) as error:
            raise SchemaError(f"malformed schema {str(schema)[:80]}: {error}") from error
        return out

    def any_of(self, schemas: Sequence[Any]) -> Schema:
        """The schema of what one of ``schemas`` admits."""
        members = [self.compile(schema) for schema in schemas]
        if len(members) == 1:
            return members[0]
        out = Schema()
        out.types = frozenset().union(*(member.types for member in members))
        out._checks.append(_alternatives(members, exactly_one=False))
        return out

    def parts(self, schema: Any) -> list[Mapping[str, Any]]:
        """``schema`` and all that it joins about the same value: its $ref, allOf, anyOf and oneOf."""
        if not isinstance(schema, Mapping):
            return []
        joined = [self._resolve(schema["$ref"])] if "$ref" in schema else []
        joined += [member for key in ("allOf", "anyOf", "oneOf") for member in schema.get(key, ())]
        return [schema, *(part for member in joined for part in self.parts(member))]

    def _fill(self, out: Schema, schema: Mapping[str, Any], around: tuple[int, ...]) -> None:
        types, checks = TYPES, out._checks
        if "$ref" in schema:
            target = self.compile(self._resolve(schema["$ref"]), around)
            types &= target.types
            checks.append(target.problem)
        if "type" in schema:
            declared = schema["type"]
            named = frozenset([declared] if isinstance(declared, str) else declared)
            if not named <= TYPES:
                raise SchemaError(f"unknown type {sorted(named - TYPES)} in a schema")
            types &= named | {"integer"} if "number" in named else named
            checks.append(_typed(named))
        if "const" in schema:
            types &= json_types(schema["const"])
            checks.append(_among([schema["const"]]))
        if "enum" in schema:
            types &= frozenset().union(*map(json_types, schema["enum"]))
            checks.append(_among(list(schema["enum"])))
        for key in ("anyOf", "oneOf"):
            if key in schema:
                members = [self.compile(member, around) for member in schema[key]]
                types &= frozenset().union(*(member.types for member in members))
                checks.append(_alternatives(members, exactly_one=key == "oneOf"))
        for part in schema.get("allOf", ()):
            member = self.compile(part, around)
            types &= member.types
            checks.append(member.problem)
        if "not" in schema:
            denied = self.compile(schema["not"], around)
            checks.append(lambda value: None if denied.problem(value) else f"{_show(value)} is not allowed")
        out.types = types
        checks += _bounds(schema)
        checks += self._objects(schema)
        checks += self._arrays(schema)

    def _resolve(self, reference: str) -> Any:
        if not reference.startswith("#"):
            raise SchemaError(f"only local references are understood, not {reference!r}")
        node = self._root
        for part in reference[1:].split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            try:
                node = node[int(part)] if isinstance(node, list) else node[part]
            except (KeyError, IndexError, ValueError, TypeError):
                raise SchemaError(f"reference {reference!r} leads nowhere") from None
        return node

    def _objects(self, schema: Mapping[str, Any]) -> list[Check]:
        if not schema.keys() & {"properties", "required", "additionalProperties"}:
            return []
        known = {name: self.compile(part) for name, part in schema.get("properties", {}).items()}
        required = tuple(schema.get("required", ()))
        more = schema.get("additionalProperties", True)
        extra = None if more is False else self.compile(more)

        def check(value: Any) -> str | None:
            if not isinstance(value, dict):
                return None
            missing = [name for name in required if name not in value]
            if missing:
                return f"missing {', '.join(map(repr, missing))}"
            for name, part in value.items():
                schema = known.get(name, extra)
                if schema is None:
                    return f"unknown {name!r}; known: {', '.join(map(repr, known)) or 'none'}"
                found = schema.problem(part)
                if found:
                    return f"{name!r}: {found}"
            return None

        return [check]

    def _arrays(self, schema: Mapping[str, Any]) -> list[Check]:
        if not schema.keys() & {"items", "prefixItems", "uniqueItems"}:
            return []
        first = [self.compile(part) for part in schema.get("prefixItems", ())]
        rest = self.compile(schema.get("items", True))
        unique = bool(schema.get("uniqueItems"))

        def check(value: Any) -> str | None:
            if not isinstance(value, list):
                return None
            for at, part in enumerate(value):
                found = (first[at] if at < len(first) else rest).problem(part)
                if found:
                    return f"item {at}: {found}"
            if unique and len(set(map(_frozen, value))) < len(value):
                return "items must differ from one another"
            return None

        return [check]


def _check_keywords(schema: Mapping[str, Any]) -> None:
    for key, (kind, says) in _KEYWORDS.items():
        if key in schema and (not isinstance(schema[key], kind) or isinstance(schema[key], bool)):
            raise SchemaError(f"{key} is {says}, not {_show(schema[key])}")
    if schema.get("multipleOf", 1) <= 0:
        raise SchemaError(f"multipleOf is above 0, not {schema['multipleOf']}")


def json_types(value: Any) -> frozenset[str]:
    """The JSON types of a value: 5.0 is an integer too."""
    if value is None:
        return frozenset(("null",))
    if isinstance(value, bool):
        return frozenset(("boolean",))
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return frozenset(("integer", "number"))
    if isinstance(value, float):
        return frozenset(("number",))
    if isinstance(value, str):
        return frozenset(("string",))
    return frozenset(("object",)) if isinstance(value, Mapping) else frozenset(("array",))


def same(a: Any, b: Any) -> bool:
    """Equality of JSON values."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def _frozen(value: Any) -> Any:
    """A hashable stand-in: two are equal exactly when :func:`same` says so of their values."""
    if isinstance(value, dict):
        return dict, frozenset((key, _frozen(part)) for key, part in value.items())
    if isinstance(value, list):
        return list, tuple(map(_frozen, value))
    return isinstance(value, bool), value


def _typed(named: frozenset[str]) -> Check:
    expected = " or ".join(sorted(named))
    return lambda value: None if json_types(value) & named else f"expected {expected}, got {_show(value)}"


def _among(allowed: list[Any]) -> Check:
    expected = ", ".join(map(_show, allowed))
    return lambda value: (
        None if any(same(value, a) for a in allowed) else f"expected one of {expected}, got {_show(value)}"
    )


def _alternatives(members: list[Schema], exactly_one: bool) -> Check:
    def check(value: Any) -> str | None:
        problems = [member.problem(value) for member in members]
        fits = problems.count(None)
        if fits > 1 and exactly_one:
            return f"{_show(value)} fits {fits} alternatives where one is allowed"
        if fits:
            return None
        near = [p for p, member in zip(problems, members, strict=True) if json_types(value) & member.types]
        return near[0] if len(near) == 1 else f"{_show(value)} fits none of the alternatives"

    return check


def _bounds(schema: Mapping[str, Any]) -> list[Check]:
    checks: list[Check] = []

    def bound(key: str, kind: type | tuple[type, ...], fits: Callable[[Any, Any], bool], says: str) -> None:
        if key in schema:
            limit = schema[key]
            checks.append(
                lambda value: (
                    None
                    if isinstance(value, bool) or not isinstance(value, kind) or fits(value, limit)
                    else f"{_show(value)} {says} {limit}"
                )
            )

    number = (int, float)
    bound("minimum", number, lambda v, n: v >= n, "is below")
    bound("maximum", number, lambda v, n: v <= n, "is above")
    bound("exclusiveMinimum", number, lambda v, n: v > n, "must be above")
    bound("exclusiveMaximum", number, lambda v, n: v < n, "must be below")
    bound("multipleOf", number, lambda v, n: _exact(v) % _exact(n) == 0, "is not a multiple of")
    bound("minLength", str, lambda v, n: len(v) >= n, "is shorter than")
    bound("maxLength", str, lambda v, n: len(v) <= n, "is longer than")
    bound("minItems", list, lambda v, n: len(v) >= n, "has fewer items than")
    bound("maxItems", list, lambda v, n: len(v) <= n, "has more items than")
    bound("minProperties", dict, lambda v, n: len(v) >= n, "has fewer properties than")
    bound("maxProperties", dict, lambda v, n: len(v) <= n, "has more properties than")
    if "pattern" in schema:
        pattern = re.compile(schema["pattern"])
        bound("pattern", str, lambda v, n: pattern.search(v) is not None, "doesn't match")
    return checks


def _exact(number: int | float) -> Fraction:
    """A number as it is written in decimal, so that 0.3 is a multiple of 0.1."""
    return Fraction(number if isinstance(number, int) else repr(number))


def _show(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
