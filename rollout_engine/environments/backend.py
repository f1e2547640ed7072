"""The synchronous core of an episode's environment.

Invariant: one backend owns one in-memory connection and nothing else; two backends share no state. Once
closed it runs no tool, so a late write never changes a grade (rule 4).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from protocol.records import ToolCall
from rollout_engine.environments.domain import Domain
from rollout_engine.environments.schema import Snapshot, insert
from rollout_engine.environments.task import Task
from rollout_engine.environments.tools import UNKNOWN_TOOL, ToolResult
from rollout_engine.errors import BackendError, ConfigurationError


class Backend:
    """A private copy of ``domain``'s image with ``rows`` over it.

    Raises :class:`ConfigurationError` when the rows do not fit the tables.
    """

    def __init__(self, domain: Domain, rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        self._domain = domain
        self._connection = domain.schema.open()
        self._closed = False
        try:
            self._connection.execute("BEGIN")
            insert(self._connection, rows)
            self._connection.execute("COMMIT")
        except (sqlite3.Error, OverflowError, UnicodeEncodeError) as error:
            self._connection.close()
            raise ConfigurationError(f"rows do not fit the tables of domain {domain.name}: {error}") from error

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Run a tool. Whatever an agent can get wrong is a result with ``is_error``.

        Raises :class:`BackendError` when the backend is closed or the tool crashes.
        """
        if self._closed:
            raise BackendError(f"tool {name} called after the backend was closed")
        tool = self._domain.tool_map.get(name)
        return UNKNOWN_TOOL if tool is None else tool.execute(self._connection, arguments)

    def snapshot(self) -> Snapshot:
        """Every table's rows by primary key."""
        return self._domain.schema.snapshot(self._connection)

    def finish(self) -> Snapshot:
        """Close to the agent, then read (rule 4)."""
        self._closed = True
        snapshot = self.snapshot()
        self._connection.close()
        return snapshot

    def close(self) -> None:
        """Close without reading; closing twice does nothing."""
        self._closed = True
        self._connection.close()


def replay(domain: Domain, task: Task, calls: Iterable[ToolCall]) -> tuple[list[ToolResult], Snapshot]:
    """Run calls on a fresh backend: their results and the terminal snapshot."""
    backend = Backend(domain, task.rows)
    try:
        results = [backend.call(call.name, call.arguments or {}) for call in calls]
        return results, backend.snapshot()
    finally:
        backend.close()
