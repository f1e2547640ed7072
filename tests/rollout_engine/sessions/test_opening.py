"""Whoever opens sessions can be asked as any other: the same calls, with the same names and defaults."""

import inspect

import msgspec
import pytest

from rollout_engine.sessions import Session, SessionHost
from rollout_engine.sessions.opening import OpenSession, OpensSessions
from rollout_engine.sessions.proxy.client import ProxyHost
from rollout_engine.sessions.proxy.reuse import ReusingHost
from rollout_engine.sessions.proxy.session import Created, ProxySession


def asked(function) -> list[tuple[str, object]]:
    """Names and defaults of the parameters."""
    return [(parameter.name, parameter.default) for parameter in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("host", [SessionHost, ProxyHost, ReusingHost])
def test_every_host_opens_in_the_same_words(host):
    assert asked(host.open) == asked(OpensSessions.open)


@pytest.mark.parametrize("session", [Session, ProxySession])
@pytest.mark.parametrize("name", ["call", "call_on", "effects", "branch"])
def test_every_session_is_used_in_the_same_words(session, name):
    assert asked(getattr(session, name)) == asked(getattr(OpenSession, name))


def test_every_session_tells_the_same():
    created = msgspec.convert({"content": {"value": {}}}, Created)
    for session in (Session("s", {}, None, None), ProxySession(None, "s", [], created)):
        assert [name for name in OpenSession.__annotations__ if not hasattr(session, name)] == []
