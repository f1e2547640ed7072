import sqlite3

import pytest

from rollout_engine.environments.schema import Schema, Table, insert
from rollout_engine.errors import ConfigurationError

SQL = "CREATE TABLE a (id TEXT PRIMARY KEY, n INTEGER); CREATE TABLE b (id TEXT PRIMARY KEY REFERENCES a);"
TABLES = (Table("a", ("id",)), Table("b", ("id",)))


def test_copies_of_the_image_are_private():
    schema = Schema(SQL, TABLES, {"a": [{"id": "x", "n": 1}]})
    one, two = schema.open(), schema.open()
    one.execute("UPDATE a SET n = 2")
    assert schema.snapshot(one) == {"a": {("x",): {"id": "x", "n": 2}}, "b": {}}
    assert schema.snapshot(two) == {"a": {("x",): {"id": "x", "n": 1}}, "b": {}}


def test_foreign_keys_hold_in_a_copy():
    connection = Schema(SQL, TABLES).open()
    with pytest.raises(sqlite3.IntegrityError):
        insert(connection, {"b": [{"id": "nowhere"}]})


def test_an_undeclared_table_is_refused():
    with pytest.raises(ConfigurationError, match="table 'b' is created but not declared"):
        _ = Schema(SQL, TABLES[:1]).image
