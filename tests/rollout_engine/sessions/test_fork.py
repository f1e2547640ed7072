"""Python servers that are imported once: which are forked and how, and what a copy has of its own."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import trio

from rollout_engine.sessions import (
    CannotBranch,
    ResultTooLarge,
    ServerStartFailed,
    SessionDied,
    SessionHost,
    SessionTimeout,
)
from rollout_engine.sessions.doctor import examine

pytestmark = pytest.mark.usefixtures("clean")


@pytest.mark.parametrize(
    "shapes, reason",
    [
        (("thread", "asyncio"), "it has 2 threads (watcher)"),
        (("socket", "asyncio"), "socket:["),
        (("file", "asyncio"), "plain.py"),
        (("temp", "asyncio"), "it made /tmp/"),
        (("child", "asyncio"), "it has child processes"),
        (("by-hand",), "it starts its event loop by hand"),
        ((), "it ended without starting an event loop by asyncio.run or anyio.run"),
    ],
)
async def test_what_cannot_be_forked_runs_as_a_fresh_process(server, limits, shapes, reason):
    async with SessionHost({"plain": server("plain", *shapes)}, limits) as host:
        mode = await host.examine("plain")
        assert mode.name == "spawn" and reason in mode.reason and not mode.clones
        async with host.open({"plain": {}}) as session:
            assert json.loads((await session.call("note", {"text": "x"})).text) == ["x"]


async def test_a_server_with_a_transport_of_its_own_is_forked_where_its_loop_starts(server, limits):
    async with SessionHost({"plain": server("plain", "asyncio")}, limits) as host:
        mode = await host.examine("plain")
        assert mode.name == "fork" and "forked at its asyncio.run" in mode.reason and not mode.clones
        assert "other means than the SDK's stdio transport" in mode.note
        async with host.open({"plain": {}}, seed=1) as one, host.open({"plain": {}}, seed=1) as other:
            await one.call("note", {"text": "x"})
            assert await other.effects() == {"plain": {"notes": []}}
            assert (await one.call("draw", {})).text == (await other.call("draw", {})).text
            with pytest.raises(CannotBranch, match="other means than the SDK's stdio transport"):
                async with one.branch():
                    pass
        async with host.template({"plain": {"notes": ["t"]}}) as template, template.clone() as clone:
            assert "other means" in template.reason
            assert await clone.effects() == {"plain": {"notes": ["t"]}}


async def test_live_sessions_of_the_sdks_server(server, limits):
    """One import for everything that a live session can do."""
    async with SessionHost({"notes": server("notes")}, limits) as host:
        mode = await host.examine("notes")
        assert (mode.name, mode.clones, mode.note) == ("fork", True, "")
        assert "forked after its handshake" in mode.reason

        # Seeds: the same give the same, and clones and branches get their own.
        draws = []
        for seed in (7, 7, 8):
            async with host.open({"notes": {}}, seed=seed) as session:
                draws.append((await session.call("draw", {})).text)
        assert draws[0] == draws[1] != draws[2]

        # A template's clones have its state and not its siblings'.
        async with host.template({"notes": {"notes": ["t"]}}, seed=1) as template:
            assert template.reason == ""
            async with template.clone(seed=7) as one, template.clone(seed=7) as other:
                await one.call("note", {"text": "1"})
                assert await other.effects() == {"notes": {"notes": ["t"]}}
                assert await one.effects() == {"notes": {"notes": ["t", "1"]}}
                assert (await one.call("draw", {})).text == (await other.call("draw", {})).text == draws[0]
            assert one.usage["notes"].cpu > 0 and one.usage["notes"].peak_memory > 1 << 20
            async with template.clone() as third:
                assert await third.effects() == {"notes": {"notes": ["t"]}}

        # Branches in mid-episode, of branches too, with a worker thread left behind by the call before.
        async with host.open({"notes": {}}) as session:
            await session.call("in_thread", {"text": "a"})
            async with session.branch(seed=3) as branch:
                await branch.call("in_thread", {"text": "b"})
                async with branch.branch() as twig:
                    await twig.call("in_thread", {"text": "c"})
                    await session.call("in_thread", {"text": "d"})
                    assert (await twig.effects())["notes"]["notes"] == ["a", "b", "c"]
                assert (await branch.effects())["notes"]["notes"] == ["a", "b"]
            assert (await session.effects())["notes"]["notes"] == ["a", "d"]

        # A branch outlives the call that ends its origin.
        async with host.open({"notes": {"notes": ["o"]}}) as session, session.branch() as branch:
            with pytest.raises(SessionDied, match="exit status 3"):
                await session.call("exit", {})
            assert (await branch.effects())["notes"]["notes"] == ["o"]

        # What a copy would share keeps a session from being copied, and it goes on.
        for tool, said in [("keep_file", "notes.py"), ("keep_temp", "it made /tmp/"), ("keep_thread", "watcher")]:
            async with host.open({"notes": {}}) as session:
                await session.call(tool, {})
                with pytest.raises(CannotBranch, match=f"can't be cloned now: .*{said}"):
                    async with session.branch():
                        pass
                assert json.loads((await session.call("note", {"text": "x"})).text) == ["x"]

        # Output of a tool does not meet the protocol, with a name for everything else that goes wrong.
        async with host.open({"notes": {}}) as session:
            assert (await session.call("print", {})).text == '"done"'
            with pytest.raises(SessionDied, match="killed by SIGSEGV"):
                await session.call("crash", {})
        async with host.open({"notes": {}}) as session:
            with pytest.raises(SessionTimeout):
                await session.call("spin", {}, timeout=0.3)
        async with host.template({"notes": {}}) as template, template.clone() as one, template.clone() as other:
            with pytest.raises(ResultTooLarge):
                await one.call("big", {"bytes": 50_000_000})
            assert json.loads((await other.call("note", {"text": "x"})).text) == ["x"]


async def test_a_large_message_each_way(server, limits):
    async with SessionHost({"notes": server("notes")}, replace(limits, result_bytes=64 << 20)) as host:
        text = "x" * 3_000_000
        async with host.open({"notes": {"notes": [text]}}) as session:
            assert (await session.effects())["notes"]["notes"] == [text]
            assert json.loads((await session.call("big", {"bytes": 5_000_000})).text) == "x" * 5_000_000


async def test_a_fork_server_that_is_killed_ends_its_sessions_and_is_started_again(server, limits):
    async with SessionHost({"plain": server("plain", "asyncio")}, limits) as host:
        async with host.open({"plain": {}}) as session:
            parent = psutil.Process(int((await session.call("pid", {})).text)).parent()
            parent.kill()
            with pytest.raises(SessionDied), trio.fail_after(10):
                while True:  # until the kernel has told the session
                    await session.call("note", {"text": "x"})
        with pytest.raises(ServerStartFailed):
            async with host.open({"plain": {}}):
                pass
        async with host.open({"plain": {}}) as session:
            assert json.loads((await session.call("note", {"text": "x"})).text) == ["x"]


async def test_a_mode_can_be_asked_for(server, limits):
    async with SessionHost({"plain": server("plain", "asyncio", mode="spawn")}, limits) as host:
        assert (await host.examine("plain")).reason == "its specification asks for it"
    async with SessionHost({"plain": server("plain", mode="fork")}, limits) as host:
        with pytest.raises(ServerStartFailed, match="without starting an event loop"):
            await host.examine("plain")


async def test_the_doctor_finds_every_servers_mode(server, limits):
    specs = {"good": server("plain", "asyncio"), "plain": server("plain"), "bad": server("plain", "fail")}
    good, plain, bad = await examine(specs, limits)
    assert (good.server, good.mode.name, good.fault) == ("good", "fork", "") and "note" in good.tools
    assert (plain.mode.name, plain.fault) == ("spawn", "") and plain.start_seconds > 0 and plain.open_seconds > 0
    assert bad.mode is None and "no licence" in bad.fault


HOST = """
import sys, trio
from rollout_engine.sessions import ServerSpec, SessionHost

async def main():
    servers = {"live": ServerSpec(name="live", command=tuple(sys.argv[1:3])),
               "fresh": ServerSpec(name="fresh", command=tuple(sys.argv[3:]))}
    async with SessionHost(servers) as host, host.open({"live": {}, "fresh": {}}) as session:
        async with host.template({"live": {}}) as template, template.clone() as clone:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(session.call_on, "live", "spin", {})
                nursery.start_soon(clone.call, "spin", {})
                async with host.open({"fresh": {}}) as other:
                    await other.call("orphan", {})
                    print("ready", flush=True)
                    await other.call("spin", {})

trio.run(main)
"""


def test_nothing_outlives_a_host_that_is_killed(server):
    """Not sessions that spin in a call, forked, cloned or spawned, nor what a session started and let go of."""
    command = [sys.executable, "-c", HOST, *server("notes").command, *server("plain").command]
    host = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3])
    assert host.stdout.readline() == b"ready\n"
    below = psutil.Process(host.pid).children(recursive=True)
    # Two fork servers, the process that sessions are copied from, two sessions' three servers, template, clone, sleep.
    assert len(below) >= 9
    host.kill()
    host.wait()
    host.stdout.close()
    deadline = time.monotonic() + 10
    while any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in below):
        assert time.monotonic() < deadline, [process for process in below if process.is_running()]
        time.sleep(0.02)


def test_the_fork_server_imports_nothing_but_the_standard_library():
    folder = Path(__file__).parents[3] / "rollout_engine" / "sessions" / "forkserver"
    code = "import sys; sys.path.insert(0, sys.argv[1]); import forkserver.checkpoint; print(*sys.modules)"
    command = [sys.executable, "-I", "-S", "-c", code, os.fspath(folder.parent)]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names <= {"forkserver", "__main__"}


def test_seeding_reaches_numpy_where_it_is_loaded():
    import random

    import numpy

    from rollout_engine.sessions.forkserver import control

    states = random.getstate(), numpy.random.get_state()
    try:
        draws = []
        for seed in (5, 5, 2**40 + 6):
            control.seed(seed)
            draws.append((random.random(), numpy.random.random()))
        assert draws[0] == draws[1] and draws[0][1] != draws[2][1]
    finally:
        random.setstate(states[0])
        numpy.random.set_state(states[1])
