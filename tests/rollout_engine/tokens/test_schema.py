"""What a schema finds wrong with a value."""

import pytest

from rollout_engine.tokens.schema import SchemaError, compile_schema, json_types, same

ITEM = {
    "type": "object",
    "properties": {"sku": {"type": "string"}, "count": {"type": "integer", "minimum": 1}},
    "required": ["sku"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("schema", "value", "problem"),
    [
        ({"type": "integer"}, True, "expected integer, got true"),
        ({"type": "number"}, 5, None),
        ({"type": "integer"}, 5.0, None),
        ({"type": "integer"}, 5.5, "expected integer, got 5.5"),
        ({"type": ["string", "null"]}, 5, "expected null or string, got 5"),
        ({"enum": ["a", "b"]}, "c", 'expected one of "a", "b", got "c"'),
        ({"const": 1}, True, "expected one of 1, got true"),
        (ITEM, {"sku": "B", "count": 2}, None),
        (ITEM, {"count": 2}, "missing 'sku'"),
        (ITEM, {"sku": "B", "count": 0}, "'count': 0 is below 1"),
        (ITEM, {"sku": "B", "qty": 1}, "unknown 'qty'; known: 'sku', 'count'"),
        ({"type": "array", "items": ITEM}, [{"sku": "B"}, {"sku": 5}], "item 1: 'sku': expected string, got 5"),
        (
            {"type": "array", "prefixItems": [{"type": "string"}], "items": False},
            ["a", 1],
            "item 1: no value is allowed here",
        ),
        ({"uniqueItems": True}, [1, 1.0], "items must differ from one another"),
        ({"uniqueItems": True}, [1, True], None),
        ({"additionalProperties": {"type": "integer"}}, {"a": "x"}, "'a': expected integer, got \"x\""),
        ({"anyOf": [{"type": "integer", "maximum": 3}, {"type": "null"}]}, 5, "5 is above 3"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "x", '"x" fits none of the alternatives'),
        ({"oneOf": [{"minimum": 1}, {"maximum": 9}]}, 5, "5 fits 2 alternatives where one is allowed"),
        ({"not": {"type": "string"}}, "x", '"x" is not allowed'),
        ({"minLength": 2}, "x", '"x" is shorter than 2'),
        ({"maxLength": 2}, "xyz", '"xyz" is longer than 2'),
        ({"pattern": "^[A-Z]$"}, "b", '"b" doesn\'t match ^[A-Z]$'),
        ({"exclusiveMinimum": 1}, 1, "1 must be above 1"),
        ({"exclusiveMaximum": 1}, 1, "1 must be below 1"),
        ({"multipleOf": 0.1}, 0.3, None),
        ({"multipleOf": 2}, 10**40 + 1, f"{str(10**40 + 1)[:40]}… is not a multiple of 2"),
        ({"minItems": 1}, [], "[] has fewer items than 1"),
        ({"maxItems": 0}, [1], "[1] has more items than 0"),
        ({"minProperties": 1}, {}, "{} has fewer properties than 1"),
        ({"maxProperties": 0}, {"a": 1}, '{"a": 1} has more properties than 0'),
        ({"minimum": 3}, "x", None),
        ({"minimum": 3}, True, None),
    ],
)
def test_problems(schema, value, problem):
    assert compile_schema(schema).problem(value) == problem


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": "number"}, {"number", "integer"}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, {"integer", "null"}),
        ({"type": ["string", "integer"], "enum": ["a", "b"]}, {"string"}),
        ({"allOf": [{"type": ["string", "null"]}, {"type": ["null", "integer"]}]}, {"null"}),
        ({"const": True}, {"boolean"}),
        (False, set()),
    ],
)
def test_admitted_types(schema, types):
    assert compile_schema(schema).types == types


@pytest.mark.parametrize(
    "schema",
    [
        *(5, {"type": "str"}, {"$ref": "#/nowhere"}, {"$ref": "other.json"}, {"pattern": "("}, {"anyOf": 5}),
        *({"$ref": "#"}, {"$ref": 5}, {"anyOf": {"type": "null"}}, {"properties": None}, {"properties": []}),
        *({"enum": "ab"}, {"required": "a"}, {"required": True}, {"type": None}, {"type": [["null"]]}),
        *({"minimum": "5"}, {"minLength": None}, {"exclusiveMinimum": True}, {"multipleOf": 0}, {"items": 5}),
    ],
)
def test_what_is_no_schema_is_refused(schema):
    with pytest.raises(SchemaError):
        compile_schema(schema)


def test_references_may_recur_through_a_part_but_not_in_a_circle():
    tree = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    assert (
        compile_schema(tree).problem({"next": {"next": {"next": 5}}})
        == "'next': 'next': 'next': expected object, got 5"
    )
    with pytest.raises(SchemaError, match="without end"):
        compile_schema({"anyOf": [{"$ref": "#/$defs/A"}], "$defs": {"A": {"allOf": [{"$ref": "#"}]}}})
    escaped = {"$ref": "#/$defs/a~1b~0c", "$defs": {"a/b~c": {"type": "null"}}}
    assert compile_schema(escaped).types == {"null"}


def test_json_equality():
    assert same({"a": [1, None]}, {"a": [1.0, None]})
    assert not same(1, True)
    assert not same([1], [1, 2])
    assert not same({"a": 1}, {"b": 1})
    assert json_types(2.0) == {"integer", "number"}


@pytest.mark.parametrize(
    ("items", "unique"),
    [
        ([1, True, "1", None, [1], {"a": 1}, False, 0, ""], True),
        ([1, 1.0], False),
        ([{"a": [1], "b": 2}, {"b": 2.0, "a": [1.0]}], False),
        ([[True], [1]], True),
        ([[], {}], True),
        ([*range(50_000)], True),
        ([*range(50_000), 0], False),
    ],
)
def test_unique_items_are_told_apart_as_json_does(items, unique):
    problem = compile_schema({"uniqueItems": True}).problem(items)
    assert problem == (None if unique else "items must differ from one another")
