"""Pass a call on to a Typesense elsewhere, with its own key in place of the caller's.

Invariant: a call is sent once. Where no answer came the caller gets a 503, which Typesense's clients understand.
"""

from __future__ import annotations

import json

import httpx

from rollout_engine.sessions.search.http import Reply, Request

KEY_HEADER = "x-typesense-api-key"
HOP_BY_HOP = {"connection", "host", "content-length", "transfer-encoding", "keep-alive", "accept-encoding", "upgrade"}


async def relay(client: httpx.AsyncClient, key: str, request: Request) -> Reply:
    """The answer of ``client``'s base URL. ``key`` empty: the caller's own key goes with the call."""
    headers = {name: value for name, value in request.headers.items() if name not in HOP_BY_HOP}
    if key:
        headers[KEY_HEADER] = key
    try:
        answer = await client.request(request.method, request.target, content=request.body, headers=headers)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        told = f"the knowledge search at {client.base_url} did not answer: {type(error).__name__}: {error}"
        return Reply(503, json.dumps({"message": told}).encode())
    return Reply(answer.status_code, answer.content, answer.headers.get("content-type", "application/json"))
