"""A process may open what its episodes need, or says so before it starts."""

import resource

import pytest

from rollout_engine.descriptors import allow_connections
from rollout_engine.errors import ConfigurationError


@pytest.fixture
def limits(monkeypatch):
    state = {"now": (1024, 20_000), "set": None}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: state["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda kind, to: state.update(set=to))
    return state


@pytest.mark.parametrize(
    ("now", "count", "then"),
    [
        ((1024, 20_000), 10, (20_000, 20_000)),
        ((1024, resource.RLIM_INFINITY), 10_000, (10_256, resource.RLIM_INFINITY)),
        ((65_536, resource.RLIM_INFINITY), 10_000, None),
        ((20_000, 20_000), 10_000, None),
    ],
)
def test_the_soft_limit_is_raised_to_what_is_needed(limits, now, count, then):
    limits["now"] = now
    allow_connections(count)
    assert limits["set"] == then


def test_a_hard_limit_that_is_too_low_is_named(limits):
    with pytest.raises(ConfigurationError, match=r"30000 episodes .* may have 20000: .* rollout.concurrency"):
        allow_connections(30_000)
