"""What happens at the system's own limits."""

import json
import resource
from contextlib import AsyncExitStack

import pytest

from rollout_engine.sessions import HostFull, SessionHost
from rollout_engine.sessions.limits import HostLimits, available_memory, raise_descriptor_limit

pytestmark = pytest.mark.usefixtures("clean")


@pytest.fixture
def descriptors():
    """Sets this process's limit for a test."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    def limit(count):
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, before[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_descriptors_are_had_where_they_can_be(descriptors):
    descriptors(64)
    raise_descriptor_limit(100)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 256 + 4 * 100
    raise_descriptor_limit(10)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 256 + 4 * 100


async def test_no_descriptor_left_is_a_full_host_and_nothing_breaks(server, limits, descriptors):
    async with SessionHost({"plain": server("plain", "asyncio")}, limits) as host:
        await host.examine("plain")
        descriptors(48)
        async with AsyncExitStack() as stack:
            with pytest.raises(HostFull, match="this process has no room for another session"):
                for _ in range(60):
                    await stack.enter_async_context(host.open({"plain": {}}))
        async with host.open({"plain": {}}) as session:
            assert json.loads((await session.call("note", {"text": "x"})).text) == ["x"]


def test_defaults_are_sane():
    limits = HostLimits()
    assert limits.runnable >= 3 and 0 < limits.memory_bytes < available_memory() * 1.1
