"""The tables of a domain and its prepared image.

Invariant: the image is built once; an episode's database is a private copy of it in memory, and every
table that the SQL creates is declared here with its key and its free columns, so nothing that an agent
can change goes ungraded by oversight.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rollout_engine.errors import ConfigurationError

Key = tuple[Any, ...]
Snapshot = dict[str, dict[Key, dict[str, Any]]]
"""Rows by primary key by table."""


@dataclass(frozen=True)
class Table:
    """``free`` columns may hold anything: text for people, timestamps, ids that the database hands out.

    When a key column is free, rows are compared as a multiset of their other columns.
    """

    name: str
    key: tuple[str, ...]
    free: frozenset[str] = frozenset()

    @property
    def matched_by_content(self) -> bool:
        return not self.free.isdisjoint(self.key)


@dataclass(frozen=True)
class Schema:
    """``sql`` creates the tables; ``base`` rows are reference data, the same in every episode."""

    sql: str
    tables: tuple[Table, ...]
    base: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)

    @cached_property
    def image(self) -> bytes:
        """The serialised database: tables and reference rows, no task's rows."""
        connection = sqlite3.connect(":memory:", isolation_level=None)
        # A table takes a page at least, and an episode's tables hold a few rows: a third of the memory an episode.
        connection.execute("PRAGMA page_size = 512")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.executescript(self.sql)
        created = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        undeclared = created - {table.name for table in self.tables} - {"sqlite_sequence"}
        if undeclared:
            raise ConfigurationError(f"table {min(undeclared)!r} is created but not declared: it would go ungraded")
        insert(connection, self.base)
        image = connection.serialize()
        connection.close()
        return image

    @cached_property
    def _kinds(self) -> dict[str, dict[str, type]]:
        """The Python type of a value by table and column."""
        connection = self.open()
        kinds = {"INTEGER": int, "TEXT": str, "REAL": float}
        try:
            return {
                table.name: {
                    column: kinds[kind]
                    for column, kind in connection.execute(f"SELECT name, type FROM pragma_table_info('{table.name}')")
                }
                for table in self.tables
            }
        finally:
            connection.close()

    def misfit(self, snapshot: Snapshot) -> str | None:
        """The first value that isn't of its column's type, or is a null in a key; SQLite itself takes both."""
        for table in self.tables:
            for key, row in snapshot[table.name].items():
                for column, value in row.items():
                    kind = self._kinds[table.name][column]
                    if type(value) is not kind and (value is not None or column in table.key):
                        where = " ".join([table.name, *map(str, key)])
                        return f"{where}: {column} is {value!r}, which is no {kind.__name__}"
        return None

    def open(self) -> sqlite3.Connection:
        """A fresh private copy of the image, in autocommit mode, with foreign keys enforced."""
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        connection.deserialize(self.image)
        connection.execute("PRAGMA foreign_keys = ON")
        return connection

    def snapshot(self, connection: sqlite3.Connection) -> Snapshot:
        """Every declared table's rows."""
        result: Snapshot = {}
        for table in self.tables:
            cursor = connection.execute(f"SELECT * FROM {table.name}")
            columns = [column[0] for column in cursor.description]
            rows = (dict(zip(columns, row, strict=True)) for row in cursor)
            result[table.name] = {tuple(row[column] for column in table.key): row for row in rows}
        return result


def insert(connection: sqlite3.Connection, rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Insert rows, tables in the order given (parents first). Raises ``sqlite3.Error`` on a bad row."""
    for table, entries in rows.items():
        for row in entries:
            columns = ", ".join(f'"{column}"' for column in row)
            marks = ", ".join("?" * len(row))
            connection.execute(f'INSERT INTO "{table}" ({columns}) VALUES ({marks})', tuple(row.values()))
