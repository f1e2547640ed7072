"""The public Session Proxy's HTTP API over a session host, as an ASGI application for trio.

Invariant: every path of the public proxy is answered as it answers, success and refusal; what it would answer with a
bare 500 (malformed JSON, a tool without text, effects that time out) is a refusal that names the fault.
"""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import trio
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from rollout_engine.sessions.opening import ServesSessions
from rollout_engine.sessions.proxy import messages
from rollout_engine.sessions.proxy.mcp import session_manager
from rollout_engine.sessions.proxy.messages import ProxyError, Reply, object_reply, text_reply
from rollout_engine.sessions.proxy.registry import Registry, open_registry
from rollout_engine.sessions.proxy.schemas import SchemaError

LARGEST_BODY = 64 * 2**20
"""Bytes of a request."""

Act = Callable[[Registry, Any], Awaitable[Reply]]


@asynccontextmanager
async def proxy_app(
    host: ServesSessions,
    *,
    key: str | None = None,
    gc_minutes: float | None = None,
    ranking: str | None = None,
) -> AsyncIterator[Starlette]:
    """The application, over sessions of ``host``, which are closed when the block is left.

    ``key``: what clients must bear. ``gc_minutes``: idle sessions are destroyed after so long. ``ranking``: whose
    knowledge search the servers have; it is told with each session.
    """
    async with open_registry(host, gc_minutes) as registry:
        manager = session_manager(registry, LARGEST_BODY)
        async with manager.run():
            app = _application(registry, manager.handle_request, key)
            app.state.registry, app.state.ranking = registry, ranking
            yield app


def _application(registry: Registry, mcp: ASGIApp, key: str | None) -> Starlette:
    routes = [Route(f"/{name}", _endpoint(kind, act), methods=["POST"]) for name, (kind, act) in ACTS.items()]
    routes.append(Route("/call_tool", _call_tool, methods=["POST"]))
    routes.append(Route("/health", _health, methods=["GET"]))
    routes += [Route(path, _Whole(mcp)) for path in ("/mcp", "/mcp/")]
    return Starlette(routes=routes, middleware=[Middleware(Authentication, key=key)])


class _Whole:
    """An ASGI application as an endpoint that takes every method."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


class Authentication:
    """Everything but ``/health`` takes ``Authorization: Bearer KEY``, where there is a key."""

    def __init__(self, app: ASGIApp, key: str | None):
        self._app = app
        self._wanted = None if key is None else f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._wanted is not None and scope["type"] == "http" and scope["path"] != "/health":
            given = Headers(scope=scope).get("authorization", "").encode("latin-1")
            if not hmac.compare_digest(given, self._wanted):
                refusal = JSONResponse({"success": False, "error": "Unauthorized"}, 401, {"www-authenticate": "Bearer"})
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)


async def _health(request: Request) -> Response:
    return PlainTextResponse("OK")


def _endpoint(kind: type[msgspec.Struct], act: Act) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            return _response(await act(request.app.state, messages.decode(await _body(request), kind)))
        except ProxyError as error:
            return _response(messages.error_reply(error))

    return endpoint


async def _call_tool(request: Request) -> Response:
    """A call goes on when its client has gone: stopping it wouldn't undo what it has done."""
    try:
        body = await _body(request)
        call = messages.decode(body, messages.CallTool)
        held = request.app.state.registry.find(call.session_id)
    except ProxyError as error:
        return _response(messages.error_reply(error))
    gone = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_watch, request, gone)
        reply = await held.call_tool(call, body, gone.is_set)
        nursery.cancel_scope.cancel()
    return _response(reply)


async def _watch(request: Request, gone: trio.Event) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    gone.set()


async def _body(request: Request) -> bytes:
    """All of it. Raises ProxyError, which nobody reads where the client has gone."""
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > LARGEST_BODY:
                raise ProxyError(f"Invalid input: the body is longer than {LARGEST_BODY} bytes", 413)
    except ClientDisconnect as error:
        raise ProxyError("Invalid input: the body ended early") from error
    return bytes(body)


def _response(reply: Reply) -> Response:
    return Response(reply.body, reply.status, dict(reply.headers))


async def _session_create(state: Any, asked: messages.SessionCreate) -> Reply:
    init_results = await state.registry.create(asked)
    return object_reply(init_results, **({} if state.ranking is None else {"ranking": state.ranking}))


async def _session_info(state: Any, asked: messages.SessionInfo) -> Reply:
    held = state.registry.find(asked.session_id)
    held.info.update(asked.update)
    return object_reply(held.info)


async def _list_tools(state: Any, asked: messages.OneSession) -> Reply:
    try:
        return object_reply({"tools": state.registry.find(asked.session_id).tools()})
    except SchemaError as error:
        raise ProxyError(str(error)) from error


async def _get_effects(state: Any, asked: messages.OneSession) -> Reply:
    return await state.registry.find(asked.session_id).effects()


async def _session_destroy(state: Any, asked: messages.OneSession) -> Reply:
    await state.registry.destroy(asked.session_id)
    return text_reply("Ok")


async def _session_destroy_all(state: Any, asked: messages.Everything) -> Reply:
    await state.registry.destroy_all()
    return text_reply("Ok")


async def _garbage_collect(state: Any, asked: messages.GarbageCollect) -> Reply:
    collected = await state.registry.collect(asked.inactivity_minutes)
    return object_reply({"count": len(collected), "session_ids": collected})


ACTS: dict[str, tuple[type[msgspec.Struct], Callable[[Any, Any], Awaitable[Reply]]]] = {
    "session_create": (messages.SessionCreate, _session_create),
    "session_info": (messages.SessionInfo, _session_info),
    "session_destroy": (messages.OneSession, _session_destroy),
    "session_destroy_all": (messages.Everything, _session_destroy_all),
    "list_tools": (messages.OneSession, _list_tools),
    "get_effects": (messages.OneSession, _get_effects),
    "garbage_collect": (messages.GarbageCollect, _garbage_collect),
}
"""The path, the body it takes, and what answers it."""
