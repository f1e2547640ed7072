"""References inlined, titles dropped."""

import copy

import pytest

from rollout_engine.sessions.proxy.schemas import Described, SchemaError, inlined
from rollout_engine.sessions.results import ToolSpec


def test_references_are_inlined_and_titles_dropped():
    schema = {
        "title": "Arguments",
        "type": "object",
        "properties": {
            "who": {"title": "Who", "$ref": "#/$defs/Person"},
            "many": {"type": "array", "items": {"$ref": "#/$defs/Person"}},
            "title": {"type": "string"},
        },
        "$defs": {
            "Person": {"title": "Person", "type": "object", "properties": {"pet": {"$ref": "#/$defs/a~1b~0c"}}},
            "a/b~c": {"title": "Pet", "enum": ["cat"]},
        },
    }
    before = copy.deepcopy(schema)
    person = {"type": "object", "properties": {"pet": {"title": "Pet", "enum": ["cat"]}}}
    properties = {
        "who": person,
        "many": {"type": "array", "items": person | {"title": "Person"}},
        "title": {"type": "string"},
    }
    plain = inlined(schema)
    assert plain == {"type": "object", "properties": properties} and schema == before
    plain["properties"]["who"]["type"] = "changed"
    assert schema == before


def test_a_property_named_like_a_keyword_stays():
    schema = {"properties": {"$ref": {"type": "string"}, "title": True}}
    assert inlined(schema) == schema and inlined({}) == {}


@pytest.mark.parametrize(
    "schema, told",
    [
        ({"properties": {"a": {"$ref": "#/$defs/None"}}}, "Missing definition"),
        ({"$ref": "http://elsewhere"}, "Missing definition"),
        ({"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"items": {"$ref": "#/$defs/A"}}}}, "Circular"),
    ],
)
def test_a_reference_that_cannot_be_followed(schema, told):
    with pytest.raises(SchemaError, match=told):
        inlined(schema)


def test_a_tool_is_described_once_and_a_changed_one_again():
    described = Described()
    tool = ToolSpec("book", "Book.", {"title": "Arguments"}, "hotel")
    assert described(tool) == {"description": "Book.", "inputSchema": {}, "server": "hotel"}
    assert described(tool) is described(tool)
    other = ToolSpec("book", "Book!", {"type": "object"}, "hotel")
    assert described(other) == {"description": "Book!", "inputSchema": {"type": "object"}, "server": "hotel"}
    assert described(ToolSpec("book", "", {}, "train"))["server"] == "train"
