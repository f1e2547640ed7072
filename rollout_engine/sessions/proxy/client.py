"""Sessions at a Session Proxy, the public one or ours, by URL: :class:`ProxyHost` is used as a SessionHost is.

Invariant: a call is sent once. Where its outcome isn't known the session has ended, and its place is destroyed. Every
wait is bounded by :class:`ProxyLimits`.

    async with ProxyHost("http://127.0.0.1:7111") as host:
        async with host.open({"bookings": {}}, seed=7, tools=["book"]) as session:
            result = await session.call("book", {"room": 12})
"""

from __future__ import annotations

import ssl
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx

from rollout_engine.sessions import jsontext
from rollout_engine.sessions.errors import (
    HostFull,
    InitFailed,
    ResultTooLarge,
    ServerStartFailed,
    SessionDied,
    SessionError,
    SessionTimeout,
)
from rollout_engine.sessions.proxy.messages import JSON_HEADERS
from rollout_engine.sessions.proxy.registry import FULL
from rollout_engine.sessions.proxy.session import Created, ProxySession, fault_of, read_reply

UNAUTHORIZED = 401
ASK_AGAIN = (FULL, 503)
"""Of a proxy that has no room: nothing was opened."""
IDLE = 4.0
"""Seconds that an idle connection is kept: the public proxy's server closes its own after 5, and a request that crosses
the closing is lost with its outcome unknown."""


@dataclass(frozen=True, kw_only=True)
class ProxyLimits:
    """Times in seconds, sizes in bytes."""

    connect: float = 10.0
    open: float = 120.0
    """Waiting for room and opening."""
    again: float = 1.0
    """Between two askings for room."""
    call: float = 60.0
    """A call or effects, where the call doesn't give its own; the proxy is told the same bound."""
    margin: float = 5.0
    """How much later than the proxy's own bound ours is, so that the proxy's answer comes first."""
    close: float = 10.0
    result_bytes: int = 64 * 2**20


class ProxyHost:
    """``async with ProxyHost(url) as host``. ``key`` is sent as a bearer token; ``ca``: trust this certificate file."""

    def __init__(self, url: str, key: str | None = None, *, ca: Path | None = None, limits: ProxyLimits | None = None):
        self.url = url.rstrip("/")
        self.limits = limits or ProxyLimits()
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self._client = httpx.AsyncClient(
            base_url=self.url,
            headers=headers,
            verify=ssl.create_default_context(cafile=ca) if ca is not None else True,
            timeout=httpx.Timeout(None, connect=self.limits.connect),
            limits=httpx.Limits(max_connections=None, keepalive_expiry=IDLE),
        )

    async def __aenter__(self) -> ProxyHost:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._client.__aexit__(*exc)

    @asynccontextmanager
    async def open(
        self,
        configs: Mapping[str, Any],
        seed: int = 0,
        tools: Sequence[str] | None = None,
        session_id: str | None = None,
    ) -> AsyncIterator[ProxySession]:
        """A session over the servers named in ``configs``. ``tools`` None (all of them) needs a proxy of ours, and only
        such a one heeds ``seed``.

        Raises HostFull, ServerStartFailed (no proxy there), InitFailed, SessionTimeout or another SessionError.
        """
        session_id = session_id or uuid.uuid4().hex
        created = False
        try:
            reply = await self._create(session_id, configs, seed, tools)
            created = True
            reply = read_reply(f"{self.url}/session_create", reply, Created)
            session = ProxySession(self, session_id, list(configs), reply)
            await session._list_tools()
            yield session
        except SessionTimeout:
            # It may have been opened all the same.
            created = True
            raise
        finally:
            if created:
                await self._destroy(session_id)

    @asynccontextmanager
    async def template(
        self, configs: Mapping[str, Any], seed: int = 0, tools: Sequence[str] | None = None
    ) -> AsyncIterator[ProxyTemplate]:
        """As a SessionHost's. The protocol has no cloning, so every clone is opened afresh."""
        yield ProxyTemplate(self, configs, tools)

    async def _create(
        self, session_id: str, configs: Mapping[str, Any], seed: int, tools: Sequence[str] | None
    ) -> dict[str, Any]:
        body = {
            "session_id": session_id,
            "server_config": configs,
            "available_tools": None if tools is None else list(tools),
            "timeout": self.limits.call,
            "seed": seed,
        }
        deadline = anyio.current_time() + self.limits.open
        while True:
            left = max(deadline - anyio.current_time(), 0.0)
            asked = body | {"open_timeout": left}
            status, reply = await self._post("/session_create", asked, left + self.limits.margin, ServerStartFailed)
            if status == 200:
                return reply
            fault = fault_of(f"{self.url} did not open a session", status, reply, InitFailed)
            if status not in ASK_AGAIN:
                if tools is None:
                    fault.add_note("A public Session Proxy wants the tools named.")
                raise fault
            if anyio.current_time() + self.limits.again >= deadline:
                raise HostFull(f"no room within {self.limits.open:g} s: {fault}")
            await anyio.sleep(self.limits.again)

    async def _destroy(self, session_id: str) -> None:
        """Never raises: what isn't destroyed now is for the proxy to collect."""
        with anyio.CancelScope(shield=True):
            try:
                await self._post("/session_destroy", {"session_id": session_id}, self.limits.close, SessionDied)
            except SessionError:
                pass

    async def _post(
        self, path: str, body: Mapping[str, Any], bound: float, lost: type[SessionError]
    ) -> tuple[int, dict[str, Any]]:
        """Status and envelope. Raises SessionTimeout, ResultTooLarge, or ``lost`` where no answer came."""
        try:
            data = jsontext.write(body)
        except ValueError as error:
            raise lost(f"{self.url}{path}: the request can't be sent as JSON: {error}") from error
        try:
            with anyio.fail_after(bound):
                async with self._client.stream("POST", path, content=data, headers=JSON_HEADERS) as reply:
                    content = bytearray()
                    async for part in reply.aiter_bytes():
                        content += part
                        if len(content) > self.limits.result_bytes:
                            limit = self.limits.result_bytes
                            raise ResultTooLarge(f"{self.url}{path}: an answer longer than {limit} bytes")
        except TimeoutError as error:
            raise SessionTimeout(f"{self.url}{path} did not answer within {bound:g} s") from error
        except httpx.HTTPError as error:
            raise lost(f"{self.url}{path}: {type(error).__name__}: {error or 'no answer'}") from error
        if reply.status_code == UNAUTHORIZED:
            raise lost(f"{self.url} refused the key: give the one that it was started with")
        try:
            envelope = jsontext.read(bytes(content))
        except ValueError:
            envelope = None
        if not isinstance(envelope, dict) or not isinstance(envelope.get("content"), dict):
            raise lost(
                f"{self.url}{path}: HTTP {reply.status_code}, no answer of a Session Proxy: {bytes(content[:200])!r}"
            )
        return reply.status_code, envelope


class ProxyTemplate:
    """As a SessionHost's template, without its savings."""

    reason = "a Session Proxy's protocol has no cloning"

    def __init__(self, host: ProxyHost, configs: Mapping[str, Any], tools: Sequence[str] | None):
        self._host, self._configs, self._tools = host, configs, tools

    @asynccontextmanager
    async def clone(self, seed: int = 0) -> AsyncIterator[ProxySession]:
        async with self._host.open(self._configs, seed=seed, tools=self._tools) as session:
            yield session
