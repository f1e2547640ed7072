"""One collection of documents, and what a search in it answers.

Invariant: answers have Typesense's shape; their ranking is :data:`~rollout_engine.sessions.search.ranking.RANKING`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from rollout_engine.sessions.search.filters import FilterError, parse_filter
from rollout_engine.sessions.search.ranking import Text, bm25

Document = dict[str, Any]
GROUP_LIMIT, PER_PAGE, MOST_PER_PAGE = 3, 10, 250
"""Typesense's defaults, and its bound."""


class SearchError(ValueError):
    """A request that can't be answered; ``status`` is its HTTP status."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


class Collection:
    """Documents by id in order of arrival. Equal texts of all collections are kept once."""

    def __init__(self, schema: Mapping[str, Any]):
        fields = schema.get("fields")
        if not isinstance(schema.get("name"), str) or not isinstance(fields, list):
            raise SearchError(400, "Parameters `name` and `fields` are required.")
        self.schema = dict(schema)
        self.name: str = schema["name"]
        self.embedded = dict(_embedding(field) for field in fields if _is_embedding(field))
        """Fields that Typesense would compute, and the fields that it would compute them from."""
        self._documents: dict[str, dict[str, Text | Any]] = {}
        self._ids = itertools.count()

    def __len__(self) -> int:
        return len(self._documents)

    def describe(self) -> dict[str, Any]:
        return self.schema | {"num_documents": len(self), "created_at": 0}

    def put(self, document: Document, action: str = "create") -> Document:
        """Add or change a document; the whole document as it now is."""
        identifier = document.get("id")
        if identifier is None:
            identifier = str(next(self._ids))
        if not isinstance(identifier, str):
            raise SearchError(400, "Document's `id` field should be a string.")
        known = self._documents.get(identifier)
        if action == "create" and known is not None:
            raise SearchError(409, f"A document with id {identifier} already exists.")
        if action == "update" and known is None:
            raise SearchError(404, f"Could not find a document with id: {identifier}")
        if action not in ("create", "upsert", "update", "emplace"):
            raise SearchError(400, f"Unknown action {action!r}.")
        kept = {key: Text.of(value) if isinstance(value, str) else value for key, value in document.items()}
        before = known if known and action in ("update", "emplace") else {}
        self._documents[identifier] = {**before, **kept, "id": Text.of(identifier)}
        return self.document(identifier)

    def document(self, identifier: str) -> Document:
        try:
            return _plain(self._documents[identifier])
        except KeyError:
            raise SearchError(404, f"Could not find a document with id: {identifier}") from None

    def remove(self, identifier: str) -> Document:
        document = self.document(identifier)
        del self._documents[identifier]
        return document

    def search(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """What ``documents/search`` answers. Where a searched field is an embedding, every document is a hit, as it
        is for Typesense, and ``vector_distance`` is 1 / (1 + score)."""
        query = str(parameters.get("q", ""))
        fields = _names(parameters.get("query_by"))
        if not fields and query != "*":
            raise SearchError(400, "Parameter `query_by` is required.")
        try:
            passes = parse_filter(str(parameters.get("filter_by", "")))
        except FilterError as error:
            raise SearchError(400, str(error)) from None
        candidates = [found for found in self._documents.values() if passes(_plain(found))]
        vector = any(field in self.embedded for field in fields)
        scored = self._scored(query, fields, candidates)
        ranked = sorted(scored, key=lambda hit: -hit[0])
        if query != "*" and not vector:
            ranked = [hit for hit in ranked if hit[0] > 0]
        left_out, kept = _names(parameters.get("exclude_fields")), _names(parameters.get("include_fields"))
        hits = [_hit(score, found, vector, left_out, kept) for score, found in ranked]
        return self._page(hits, [found for _, found in ranked], parameters)

    def _scored(self, query: str, fields: list[str], candidates: list[dict]) -> list[tuple[float, dict]]:
        if query == "*":
            return [(0.0, found) for found in candidates]
        sources = dict.fromkeys(source for field in fields for source in self.embedded.get(field, [field]))
        columns = [[_searchable(found.get(source)) for found in candidates] for source in sources]
        scores = [bm25(query, column) for column in columns]
        return [(max((column[i] for column in scores), default=0.0), found) for i, found in enumerate(candidates)]

    def _page(self, hits: list[dict], documents: list[dict], parameters: Mapping[str, Any]) -> dict[str, Any]:
        size, number = _count(parameters, "per_page", PER_PAGE), _count(parameters, "page", 1)
        window = slice((number - 1) * size, number * size)
        answer: dict[str, Any] = {"facet_counts": [], "out_of": len(self), "page": number, "search_cutoff": False}
        answer |= {"search_time_ms": 0, "request_params": {"collection_name": self.name, "per_page": size}}
        keys = _names(parameters.get("group_by"))
        if not keys:
            return answer | {"found": len(hits), "hits": hits[window]}
        groups: dict[tuple[str, ...], list[dict]] = {}
        for hit, document in zip(hits, documents, strict=True):
            groups.setdefault(tuple(str(_plain(document).get(key, "")) for key in keys), []).append(hit)
        limit = _count(parameters, "group_limit", GROUP_LIMIT)
        grouped = [{"group_key": list(key), "found": len(of), "hits": of[:limit]} for key, of in groups.items()]
        return answer | {"found": len(grouped), "found_docs": len(hits), "grouped_hits": grouped[window]}


def _is_embedding(field: Any) -> bool:
    if not isinstance(field, dict) or not isinstance(field.get("name"), str):
        raise SearchError(400, "Every one of `fields` must be an object with a `name`.")
    return "embed" in field


def _embedding(field: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Its name, and the fields that it would be computed from."""
    embed = field["embed"]
    sources = embed.get("from") if isinstance(embed, dict) else None
    if not isinstance(sources, list) or not all(isinstance(source, str) for source in sources):
        raise SearchError(400, f"Property `embed.from` of field `{field['name']}` must be a list of fields' names.")
    return field["name"], sources


def _hit(score: float, found: dict, vector: bool, left_out: list[str], kept: list[str]) -> dict[str, Any]:
    document = {key: value for key, value in _plain(found).items() if key not in left_out and (not kept or key in kept)}
    hit = {"document": document, "highlight": {}, "highlights": [], "text_match": round(score * 1_000_000)}
    return hit | ({"vector_distance": 1 / (1 + score)} if vector else {})


def _plain(found: Mapping[str, Any]) -> Document:
    return {key: value.value if isinstance(value, Text) else value for key, value in found.items()}


def _searchable(value: Any) -> Text:
    if isinstance(value, Text):
        return value
    return Text.of("" if value is None else " ".join(map(str, value)) if isinstance(value, list) else str(value))


def _names(value: Any) -> list[str]:
    return [name.strip() for name in str(value or "").split(",") if name.strip()]


def _count(parameters: Mapping[str, Any], name: str, default: int) -> int:
    """A parameter that counts: from 1 on, but ``per_page`` may be 0."""
    value = parameters.get(name, default)
    least = 0 if name == "per_page" else 1
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = -1
    if not least <= number <= (MOST_PER_PAGE if name == "per_page" else 10**9):
        raise SearchError(400, f"Parameter `{name}` must be a whole number in Typesense's bounds, not {value!r}.")
    return number
