"""The protocol's bodies: requests as structs, replies as an envelope.

Invariant: a body of the public proxy's client is read as the public proxy reads it, unknown keys included (ignored);
a reply has the same ``success`` and ``content``. What ours say beyond that are further keys of the envelope.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from rollout_engine.sessions import jsontext
from rollout_engine.sessions.errors import SessionError

JSON_HEADERS = {"content-type": "application/json"}


class ProxyError(Exception):
    """A refusal, told in the envelope with this status. ``kind`` is that of the SessionError behind it, if any."""

    def __init__(self, message: str, status: int = 400, headers: Mapping[str, str] | None = None, kind: str = ""):
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})
        self.kind = kind

    @classmethod
    def of(cls, error: SessionError, status: int = 400, headers: Mapping[str, str] | None = None) -> ProxyError:
        return cls(str(error), status, headers, error.kind)


class SessionCreate(msgspec.Struct):
    """``timeout`` bounds the creation and each later call, in seconds. Three things are ours: ``available_tools`` None
    makes every tool visible, ``open_timeout`` bounds the creation alone, ``seed`` sets the servers' random state."""

    session_id: str
    server_config: dict[str, dict[str, Any]]
    available_tools: list[str] | None
    timeout: float = 120.0
    always_json_output: bool = False
    geteffects_proxy_info: bool = False
    seed: int | None = None
    open_timeout: float | None = None

    def __post_init__(self) -> None:
        if self.open_timeout is None:
            self.open_timeout = self.timeout
        for name in ("timeout", "open_timeout"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a positive number of seconds, not {getattr(self, name)}")


class CallTool(msgspec.Struct):
    """``call_id`` is ours: a call that is sent again with the same id is not carried out again."""

    session_id: str
    tool_name: str
    arguments: dict[str, Any]
    call_id: str | None = None


class SessionInfo(msgspec.Struct):
    session_id: str
    update: dict[str, Any] = {}


class OneSession(msgspec.Struct):
    session_id: str


class Everything(msgspec.Struct):
    pass


class GarbageCollect(msgspec.Struct):
    inactivity_minutes: float


Body = TypeVar("Body", bound=msgspec.Struct)


def decode(body: bytes, kind: type[Body]) -> Body:
    """The body of a request. Raises ProxyError, which names the fault."""
    try:
        # The standard library's decoder: it takes numbers of any size and NaN, as the public proxy does.
        value = jsontext.read_unchanged(body)
    except ValueError as error:
        raise ProxyError(f"Invalid input: the body is no JSON: {error}") from None
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ProxyError(f"Invalid input: {error}") from None


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes
    headers: Mapping[str, str]


def text_reply(value: str, **more: Any) -> Reply:
    return _reply(200, True, "string", value, more)


def object_reply(value: Mapping[str, Any], **more: Any) -> Reply:
    return _reply(200, True, "object", value, more)


def object_text_reply(texts: Mapping[str, str]) -> Reply:
    """An object whose values are JSON already."""
    value = ", ".join(f"{json.dumps(key)}: {text}" for key, text in texts.items())
    body = '{"success": true, "content": {"type": "object", "value": {' + value + "}}}"
    return Reply(200, body.encode(), JSON_HEADERS)


def error_reply(error: ProxyError) -> Reply:
    more = {"kind": error.kind} if error.kind else {}
    return _reply(error.status, False, "string", str(error), more, error.headers)


def _reply(status: int, success: bool, kind: str, value: Any, more: Mapping[str, Any], headers=()) -> Reply:
    # ASCII only, so that lone surrogates in a tool's output can be sent.
    body = json.dumps({"success": success, "content": {"type": kind, "value": value}, **more}).encode()
    return Reply(status, body, JSON_HEADERS | dict(headers))
