"""The embedded stand-in for a Typesense server: the calls that knowledge servers make, over memory.

Invariant: a collection lives as long as a connection that used it is open, and ``grace`` seconds without use after
that. So a session that dies without its teardown leaves nothing behind for long, and one that keeps its connection,
as Typesense's own client does, may be silent as long as it likes.

https://typesense.org/docs/latest/api/ describes the calls.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rollout_engine.sessions.search.collection import Collection, SearchError
from rollout_engine.sessions.search.http import Reply, Request, json_reply
from rollout_engine.sessions.search.ranking import RANKING

MULTIPLE_SEARCHES = 50
"""Typesense's ``limit_multi_searches``."""


@dataclass
class _Held:
    collection: Collection
    used: float
    connections: set[int] = field(default_factory=set)


class StandIn:
    """Collections by name, and the answer to a request. ``clock`` gives seconds; it never goes back."""

    def __init__(self, clock: Callable[[], float], grace: float):
        self._clock = clock
        self._grace = grace
        self._held: dict[str, _Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    async def handle(self, request: Request) -> Reply:
        try:
            return self._answer(request)
        except SearchError as error:
            return json_reply(error.status, {"message": str(error)})

    def disconnected(self, connection: int) -> None:
        """A connection has closed: the collections it used start to age."""
        for held in self._held.values():
            if connection in held.connections:
                held.connections.remove(connection)
                held.used = self._clock()

    def collect(self) -> int:
        """Drop the collections that nobody can want any more; how many."""
        oldest = self._clock() - self._grace
        dead = [name for name, held in self._held.items() if not held.connections and held.used <= oldest]
        for name in dead:
            del self._held[name]
        return len(dead)

    def _answer(self, request: Request) -> Reply:
        match request.method, *request.path:
            case "GET", "health":
                return json_reply(200, {"ok": True, "ranking": RANKING})
            case "GET", "debug":
                return json_reply(200, {"state": 1, "version": RANKING})
            case "GET", "collections":
                return json_reply(200, [held.collection.describe() for held in self._held.values()])
            case "POST", "collections":
                return json_reply(201, self._create(request))
            case "POST", "multi_search":
                return json_reply(200, {"results": self._searches(request)})
            case method, "collections", name, *rest:
                return self._in_collection(method, self._use(name, request), rest, request)
            case _:
                raise _unknown(request)

    def _in_collection(self, method: str, collection: Collection, rest: list[str], request: Request) -> Reply:
        match method, *rest:
            case ["GET"]:
                return json_reply(200, collection.describe())
            case ["DELETE"]:
                del self._held[collection.name]
                return json_reply(200, collection.describe())
            case "POST", "documents":
                document = collection.put(_object(request.body), request.query.get("action", "create"))
                return json_reply(201, document)
            case "POST", "documents", "import":
                return _import(collection, request)
            case "GET", "documents", "search":
                return json_reply(200, collection.search(request.query))
            case "GET", "documents", identifier:
                return json_reply(200, collection.document(identifier))
            case "PATCH", "documents", identifier:
                return json_reply(200, collection.put(_object(request.body) | {"id": identifier}, "update"))
            case "DELETE", "documents", identifier:
                return json_reply(200, collection.remove(identifier))
            case _:
                raise _unknown(request)

    def _create(self, request: Request) -> Mapping[str, Any]:
        collection = Collection(_object(request.body))
        if collection.name in self._held:
            raise SearchError(409, f"A collection with name `{collection.name}` already exists.")
        self._held[collection.name] = _Held(collection, self._clock(), {request.connection})
        return collection.describe()

    def _use(self, name: str, request: Request) -> Collection:
        held = self._held.get(name)
        if held is None:
            raise SearchError(404, f"No collection with name `{name}` found.")
        held.used = self._clock()
        held.connections.add(request.connection)
        return held.collection

    def _searches(self, request: Request) -> list[dict[str, Any]]:
        """Each search's own fault is in its place: one that fails doesn't keep the others from an answer."""
        searches = _object(request.body).get("searches")
        if not isinstance(searches, list) or not all(isinstance(search, dict) for search in searches):
            raise SearchError(400, "Parameter `searches` must be a list of objects.")
        if len(searches) > MULTIPLE_SEARCHES:
            raise SearchError(400, f"Number of multi searches exceeds `limit_multi_searches` ({MULTIPLE_SEARCHES}).")
        results = []
        for search in searches:
            parameters = {**request.query, **search}
            try:
                results.append(self._use(str(parameters.get("collection")), request).search(parameters))
            except SearchError as error:
                results.append({"code": error.status, "error": str(error)})
        return results


def _import(collection: Collection, request: Request) -> Reply:
    """One line an outcome, as they came; the reply is 200 whatever happened to each."""
    outcomes = []
    for line in request.body.splitlines():
        if not line.strip():
            continue
        try:
            collection.put(_object(line), request.query.get("action", "create"))
            outcomes.append({"success": True})
        except SearchError as error:
            told = {"code": error.status, "error": str(error), "document": line.decode(errors="replace")}
            outcomes.append({"success": False} | told)
    body = "\n".join(json.dumps(outcome) for outcome in outcomes)
    return Reply(200, body.encode(), "text/plain; charset=utf-8")


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise SearchError(400, "Bad JSON.") from None
    if not isinstance(value, dict):
        raise SearchError(400, "Bad JSON: an object is expected.")
    return value


def _unknown(request: Request) -> SearchError:
    return SearchError(
        404, f"{request.method} {request.target}: the embedded knowledge search doesn't answer this call."
    )
