"""Recorded conversations that a test begins with: slices of the lists in its companion ``<stem>.meta.yaml``.

Invariant: a reference ``key:start:end`` (the key may hold colons; start an index or a message_id; end a message_id
that is left out, or empty) names existing messages, and each message has all that its kind needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from rollout_engine.environments.thinkingbox.dataset.documents import Document, Keys, explain, read_document
from rollout_engine.environments.thinkingbox.dataset.errors import nearest
from rollout_engine.environments.thinkingbox.dataset.schema import HistoryItem, HistoryMessage, HistoryReference


def read_reference(document: Document, at: Keys) -> HistoryReference:
    """The reference that ``document`` writes at ``at``, as text or as a mapping; raises DatasetError."""
    written: Any = document.tree
    for part in at:
        written = written[part]
    if not isinstance(written, str):
        return document.typed(HistoryReference, at)
    key, *bounds = written.rsplit(":", 2)
    if not key or len(bounds) != 2:
        raise document.error(f"history {written!r} is not 'key:start:end'", *at)
    start, end = bounds
    return HistoryReference(key=key, start=int(start) if start.lstrip("+-").isdecimal() else start, end=end)


class Histories:
    """The histories beside one test file."""

    def __init__(self, test_file: Path) -> None:
        self.file = test_file.with_suffix("").with_suffix(".meta.yaml")
        self._document = read_document(self.file) if self.file.is_file() else None
        self._lists = self._read()

    def resolve(self, reference: HistoryReference, said: Document, at: Keys) -> tuple[HistoryMessage, ...]:
        """The messages of a reference that ``said`` makes at ``at``; raises DatasetError."""
        if self._document is None:
            raise said.error(f"history {reference.key!r}: there is no {self.file.name} beside the tests", *at)
        if reference.key not in self._lists:
            message = f"history {reference.key!r} is not in {self.file.name}{nearest(reference.key, self._lists)}"
            raise said.error(message, *at)
        messages = self._lists[reference.key]
        start = self._start(messages, reference, said, at)
        end = len(messages)
        if reference.end:
            end = self._marked(messages, reference.end, said, at)
            if end <= start:
                raise said.error(f"history ends at {reference.end!r}, which doesn't come after its start", *at)
        return tuple(self._message(reference.key, index) for index in range(start, end))

    def _read(self) -> dict[str, list[Any]]:
        if self._document is None:
            return {}
        # Other entries of the file are notes for people.
        lists = self._document.mapping().get("$history") or {}
        if not isinstance(lists, dict):
            raise self._document.error("$history must be a mapping of message lists", "$history")
        kept = {key: messages for key, messages in lists.items() if messages is not None and not key.startswith("#")}
        for key, messages in kept.items():
            if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
                raise self._document.error(f"$history: {key!r} must be a list of messages", "$history", key)
        return kept

    def _start(self, messages: list[Any], reference: HistoryReference, said: Document, at: Keys) -> int:
        if isinstance(reference.start, str):
            return self._marked(messages, reference.start, said, at)
        if not 0 <= reference.start <= len(messages):
            raise said.error(f"history starts at {reference.start}, of {len(messages)} messages", *at)
        return reference.start

    def _marked(self, messages: list[Any], mark: str, said: Document, at: Keys) -> int:
        marks = [message.get("message_id") for message in messages]
        if mark not in marks:
            raise said.error(f"history: no message_id {mark!r}{nearest(mark, filter(None, marks))}", *at)
        return marks.index(mark)

    def _message(self, key: str, index: int) -> HistoryMessage:
        where = ("$history", key, index)
        message = {name: value for name, value in self._lists[key][index].items() if name != "message_id"}
        try:
            return msgspec.convert({"message": message}, HistoryItem).message
        except msgspec.ValidationError as error:
            told, path = _told(error, message)
            raise self._document.error(told, *where, *path) from error


def _told(error: msgspec.ValidationError, message: dict[str, Any]) -> tuple[str, Keys]:
    kinds = {kind.__name__: kind for kind in HistoryMessage.__args__}
    kind = kinds.get(message.get("T"))
    if kind is None:
        return f"T must be one of {', '.join(kinds)}, not {message.get('T')!r}", ("T",)
    told, path = explain(str(error).replace("$.message", "$"), kind)
    return told, path
