"""Typing of raw values by JSON schema: rules 15 to 19 of the interpretation."""

import pytest

from rollout_engine.tokens.schema import compile_schema, same
from rollout_engine.tokens.values import ValueRefused, decode_json, read_value

INTEGER, NUMBER, BOOLEAN = {"type": "integer"}, {"type": "number"}, {"type": "boolean"}
OBJECT, ARRAY = {"type": "object"}, {"type": "array"}
NULLABLE_STRING = {"anyOf": [{"type": "string"}, {"type": "null"}]}
NULLABLE_INTEGER = {"type": ["integer", "null"]}
REFUSED = object()


def read(text, schema):
    try:
        return read_value(text, compile_schema(schema))
    except ValueRefused as refused:
        assert str(refused)
        return REFUSED


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        (INTEGER, "5", 5),
        (INTEGER, " 5\n", 5),
        (INTEGER, "-7", -7),
        (INTEGER, "0", 0),
        (INTEGER, "-0", 0),
        (INTEGER, "5.0", 5),
        (INTEGER, "123456789012345678901234567890", 123456789012345678901234567890),
        (INTEGER, "5.5", REFUSED),
        (INTEGER, "+5", REFUSED),
        (INTEGER, "007", REFUSED),
        (INTEGER, "1_000", REFUSED),
        (INTEGER, "1,000", REFUSED),
        (INTEGER, "5e0", REFUSED),
        (INTEGER, "0x10", REFUSED),
        (INTEGER, "٥", REFUSED),
        (INTEGER, "five", REFUSED),
        (INTEGER, '"5"', REFUSED),
        (INTEGER, "true", REFUSED),
        (INTEGER, "null", REFUSED),
        (INTEGER, "", REFUSED),
        (INTEGER, "9" * 5000, REFUSED),
        (INTEGER, "- 5", REFUSED),
        (NUMBER, "5", 5),
        (NUMBER, "5.0", 5.0),
        (NUMBER, "-0.25", -0.25),
        (NUMBER, "1e3", 1000.0),
        (NUMBER, "1E-2", 0.01),
        (NUMBER, "1e999", REFUSED),
        (NUMBER, "NaN", REFUSED),
        (NUMBER, "Infinity", REFUSED),
        (NUMBER, "-inf", REFUSED),
        (NUMBER, ".5", REFUSED),
        (NUMBER, "5.", REFUSED),
        (NUMBER, "1_0.0", REFUSED),
        (BOOLEAN, "true", True),
        (BOOLEAN, "False", False),
        (BOOLEAN, " true ", True),
        (BOOLEAN, "TRUE", REFUSED),
        (BOOLEAN, "yes", REFUSED),
        (BOOLEAN, "1", REFUSED),
        (BOOLEAN, "", REFUSED),
        (OBJECT, '{"a": [1, {"b": null}]}', {"a": [1, {"b": None}]}),
        (OBJECT, "{}", {}),
        (OBJECT, "{'a': 1}", REFUSED),
        (OBJECT, '{"a": 1, "a": 2}', REFUSED),
        (OBJECT, '{"a": NaN}', REFUSED),
        (OBJECT, '{"a": 1e999}', REFUSED),
        (OBJECT, '{"a": 1} x', REFUSED),
        (OBJECT, '{"a": 1', REFUSED),
        (OBJECT, "[]", REFUSED),
        (OBJECT, '{"a": "\\ud83e"}', REFUSED),
        (OBJECT, '{"a": "\\ud83e\\uddf3"}', {"a": "🧳"}),
        (ARRAY, '[1, "2"]', [1, "2"]),
        (ARRAY, "1, 2", REFUSED),
        (ARRAY, "[" * 101 + "]" * 101, REFUSED),
        (ARRAY, "[" * 5000 + "]" * 5000, REFUSED),
    ],
)
def test_rule_16_types_without_string(schema, text, value):
    got = read(text, schema)
    assert got is REFUSED if value is REFUSED else same(got, value) and type(got) is type(value), got


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        (NULLABLE_STRING, "null", None),
        (NULLABLE_STRING, "None", "None"),
        (NULLABLE_STRING, " null", " null"),
        (NULLABLE_STRING, "Null", "Null"),
        (NULLABLE_STRING, '"null"', '"null"'),
        (NULLABLE_STRING, "", ""),
        (NULLABLE_STRING, "5", "5"),
        (NULLABLE_INTEGER, "null", None),
        (NULLABLE_INTEGER, "None", None),
        (NULLABLE_INTEGER, "5", 5),
        (NULLABLE_INTEGER, "", REFUSED),
        (NULLABLE_INTEGER, "nil", REFUSED),
        ({"type": "null"}, "null", None),
        ({"type": ["string", "integer"]}, "5", 5),
        ({"type": ["string", "integer"]}, "05", "05"),
        ({"type": ["string", "integer"]}, "5.5", "5.5"),
        ({"oneOf": [{"type": "integer", "maximum": 9}, {"type": "string"}]}, "12", "12"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "5", REFUSED),
        ({"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "string"}]}, "[1, 2]", [1, 2]),
        ({"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "string"}]}, '["a"]', '["a"]'),
        ({}, "5", 5),
        ({}, "B417", "B417"),
        (True, "true", True),
        (False, "true", REFUSED),
    ],
)
def test_rule_17_unions_take_another_type_only_where_the_text_is_its_json(schema, text, value):
    got = read(text, schema)
    assert got is REFUSED if value is REFUSED else same(got, value) and type(got) is type(value), got


DEFS = {
    "$defs": {
        "Tier": {"enum": ["gold", "basic"]},
        "Tree": {"anyOf": [INTEGER, {"type": "array", "items": {"$ref": "#/$defs/Tree"}}]},
    }
}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"enum": ["a", "5", "null"]}, "5", "5"),
        ({"enum": ["a", 5]}, "5", 5),
        ({"enum": ["a", 5]}, "6", REFUSED),
        ({"enum": [True, False]}, "true", True),
        ({"enum": [1, 0]}, "true", REFUSED),
        ({"type": "string", "enum": ["a"]}, " a", REFUSED),
        ({"const": "x"}, "x", "x"),
        ({"const": 1.5}, "1.5", 1.5),
        ({"const": None}, "null", None),
        ({"const": [1]}, "[1]", [1]),
        ({**DEFS, "$ref": "#/$defs/Tier"}, "gold", "gold"),
        ({**DEFS, "$ref": "#/$defs/Tier"}, "tin", REFUSED),
        ({**DEFS, "anyOf": [{"$ref": "#/$defs/Tier"}, {"type": "null"}]}, "null", None),
        ({**DEFS, "$ref": "#/$defs/Tree"}, "[1, [2, []]]", [1, [2, []]]),
        ({**DEFS, "$ref": "#/$defs/Tree"}, "[1, [true]]", REFUSED),
        ({"allOf": [INTEGER, {"minimum": 3}]}, "5", 5),
        ({"allOf": [INTEGER, {"minimum": 3}]}, "2", REFUSED),
        ({"type": "string", "not": {"enum": ["x"]}}, "x", REFUSED),
    ],
)
def test_rule_18_combined_schemas_decide_the_types_and_check(schema, text, value):
    got = read(text, schema)
    assert got is REFUSED if value is REFUSED else same(got, value) and type(got) is type(value), got


def test_json_is_strict():
    assert decode_json('{"a": 1}') == {"a": 1}
    for text in ("", " 1", "1 ", "NaN", "{'a': 1}", "01", "tru"):
        with pytest.raises(ValueRefused):
            decode_json(text)
