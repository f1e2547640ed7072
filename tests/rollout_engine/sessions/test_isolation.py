"""Isolation, as a property: whatever is written where, in whatever order, every session has exactly its own history."""

from contextlib import AsyncExitStack

import pytest
import trio
from anyio.from_thread import start_blocking_portal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollout_engine.sessions import HostLimits, SessionDied, SessionHost

WHICH = st.integers(0, 99)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.booleans()),
        st.tuples(st.just("clone"), WHICH),
        st.tuples(st.just("branch"), WHICH),
        st.tuples(st.just("write"), st.lists(WHICH, min_size=1, max_size=6)),
        st.tuples(st.just("die"), WHICH),
    ),
    min_size=4,
    max_size=14,
)


@pytest.fixture(scope="module")
def portal_and_host(server):
    """One host for all examples: what one leaves behind would be seen by the next."""
    limits = HostLimits(runnable=4, call_timeout=30, result_bytes=1 << 20)
    with start_blocking_portal("trio") as portal:
        servers = {"notes": server("notes"), "plain": server("plain", "asyncio")}
        with portal.wrap_async_context_manager(SessionHost(servers, limits)) as host:
            yield portal, host


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS)
def test_interleaved_writes_never_meet(portal_and_host, steps):
    portal, host = portal_and_host
    portal.call(play, host, steps)


async def play(host, steps):
    """``sessions``: (session, the notes that it must have) of those alive."""
    sessions = []
    written = 0
    async with AsyncExitStack() as stack:
        template = await stack.enter_async_context(host.template({"notes": {"notes": ["template"]}}))
        for step, which in steps:
            if step == "open":
                # With a second server, which can't be branched, or alone.
                configs = {"notes": {"notes": ["opened"]}, **({"plain": {}} if which else {})}
                session = await stack.enter_async_context(host.open(configs))
                sessions.append((session, ["opened"]))
            elif step == "clone":
                session = await stack.enter_async_context(template.clone(seed=which))
                sessions.append((session, ["template"]))
            elif not sessions:
                continue
            elif step == "branch":
                origin, notes = sessions[which % len(sessions)]
                if len(await origin.effects()) == 1:
                    branch = await stack.enter_async_context(origin.branch(seed=which))
                    sessions.append((branch, list(notes)))
            elif step == "write":
                async with trio.open_nursery() as nursery:
                    for position in which:
                        session, notes = sessions[position % len(sessions)]
                        tool = "in_thread" if position % 2 else "note"
                        written += 1
                        notes.append(str(written))
                        nursery.start_soon(session.call_on, "notes", tool, {"text": str(written)})
            elif step == "die":
                session, _ = sessions.pop(which % len(sessions))
                with trio.fail_after(10), pytest.raises(SessionDied, match="exit status 3"):
                    await session.call_on("notes", "exit", {})
        for session, notes in sessions:
            found = (await session.effects())["notes"]["notes"]
            # Concurrent writes to one session come in either order, but each once and nothing else's.
            assert sorted(found) == sorted(notes)
        async with template.clone() as untouched:
            assert (await untouched.effects())["notes"]["notes"] == ["template"]
