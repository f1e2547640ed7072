"""The row-by-row difference of two database snapshots.

Invariant: the difference is empty exactly when every column that is not declared free agrees in every
row of every table. It says nothing of how the state was reached.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from protocol.records import RowChange
from rollout_engine.environments.schema import Key, Snapshot, Table

Rows = Mapping[Key, Mapping[str, Any]]


def compare(tables: Sequence[Table], expected: Snapshot, actual: Snapshot) -> tuple[RowChange, ...]:
    """How ``actual`` differs from ``expected``, tables in their declared order, rows by key."""
    changes: list[RowChange] = []
    for table in tables:
        rows = _by_content if table.matched_by_content else _by_key
        changes += rows(table, expected.get(table.name, {}), actual.get(table.name, {}))
    return tuple(changes)


def explain(changes: Sequence[RowChange]) -> tuple[str, ...]:
    """One sentence a changed row, for people."""
    return tuple(_sentence(change) for change in changes)


def _by_key(table: Table, expected: Rows, actual: Rows) -> list[RowChange]:
    changes = []
    for key in sorted(expected.keys() | actual.keys(), key=repr):
        want, got = expected.get(key), actual.get(key)
        if got is None:
            changes.append(RowChange(table.name, key, "missing", expected=_graded(table, want)))
        elif want is None:
            changes.append(RowChange(table.name, key, "extra", actual=_graded(table, got)))
        else:
            wrong = [column for column in want if column not in table.free and not _same(want[column], got[column])]
            if wrong:
                changes.append(
                    RowChange(
                        table.name,
                        key,
                        "wrong",
                        {name: want[name] for name in wrong},
                        {name: got[name] for name in wrong},
                    )
                )
    return changes


def _by_content(table: Table, expected: Rows, actual: Rows) -> list[RowChange]:
    want = Counter(_content(table, row) for row in expected.values())
    got = Counter(_content(table, row) for row in actual.values())
    missing = sorted((want - got).elements(), key=repr)
    extra = sorted((got - want).elements(), key=repr)
    return [RowChange(table.name, (), "missing", expected=_plain(content)) for content in missing] + [
        RowChange(table.name, (), "extra", actual=_plain(content)) for content in extra
    ]


def _graded(table: Table, row: Mapping[str, Any]) -> dict[str, Any]:
    return {column: value for column, value in row.items() if column not in table.free}


def _content(table: Table, row: Mapping[str, Any]) -> tuple[tuple[str, type, Any], ...]:
    # The type is part of the content: SQLite tells 1 from 1.0 and from '1'.
    return tuple((column, type(value), value) for column, value in _graded(table, row).items())


def _plain(content: tuple[tuple[str, type, Any], ...]) -> dict[str, Any]:
    return {column: value for column, _, value in content}


def _same(want: Any, got: Any) -> bool:
    return type(want) is type(got) and want == got


def _sentence(change: RowChange) -> str:
    where = " ".join([change.table, *map(str, change.key)])
    if change.kind == "wrong":
        parts = [f"{name} is {change.actual[name]!r}, expected {value!r}" for name, value in change.expected.items()]
        return f"{where}: {'; '.join(parts)}"
    row = change.expected if change.kind == "missing" else change.actual
    values = ", ".join(f"{name}={value!r}" for name, value in row.items())
    if change.kind == "missing":
        return f"{where}: a row with {values} is missing"
    return f"{where}: a row with {values} should not be there"
