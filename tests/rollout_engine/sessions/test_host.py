"""Sessions whatever the server: calls, several servers, visibility, ends, and that nothing is left behind."""

import json

import pytest
import trio

from rollout_engine.sessions import (
    CannotBranch,
    HostFull,
    HostLimits,
    InitFailed,
    SessionClosed,
    SessionError,
    SessionHost,
    UnknownTool,
)

pytestmark = pytest.mark.usefixtures("clean")


async def test_a_session_is_initialized_called_read_and_accounted_for(server, limits):
    async with SessionHost({"plain": server("plain")}, limits) as host:
        async with host.open({"plain": {"notes": ["first"]}}) as session:
            assert set(session.init_result["plain"]) == {"pid"}
            assert "note" in [tool.name for tool in session.tools]
            assert not any(tool.name.startswith("__reserved__") for tool in session.tools)
            result = await session.call("note", {"text": "second"})
            assert json.loads(result.text) == ["first", "second"] and not result.is_error
            assert result.content == [{"type": "text", "text": result.text}]
            assert await session.effects() == {"plain": {"notes": ["first", "second"]}}
            assert (
                await session.call_on("plain", "__reserved__geteffects", {})
            ).text == '{"notes": ["first", "second"]}'
        assert session.usage["plain"].cpu > 0.001 and session.usage["plain"].peak_memory > 1 << 20
        with pytest.raises(SessionClosed):
            await session.call("note", {"text": "third"})


async def test_sessions_of_one_server_do_not_meet(server, limits):
    async with SessionHost({"plain": server("plain")}, limits) as host:
        async with host.open({"plain": {}}) as one, host.open({"plain": {"notes": ["x"]}}) as other:
            await one.call("note", {"text": "1"})
            assert await other.effects() == {"plain": {"notes": ["x"]}}
            assert await one.effects() == {"plain": {"notes": ["1"]}}


async def test_a_tools_own_error_and_a_refused_call_are_results(server, limits):
    async with SessionHost({"plain": server("plain")}, limits) as host:
        async with host.open({"plain": {}}) as session:
            failed = await session.call("fail", {})
            assert failed.is_error and failed.text == "as asked"
            await session.call("note", {"text": "still here"})
            with pytest.raises(UnknownTool, match="no server of this session shows a tool 'nothing'"):
                await session.call("nothing", {})
            with pytest.raises(UnknownTool, match="has no tool 'nothing'"):
                await session.call_on("plain", "nothing", {})
            assert (await session.effects())["plain"]["notes"] == ["still here"]


async def test_of_two_servers_the_later_wins_a_name_and_tools_limits_what_is_seen(server, limits):
    servers = {"a": server("plain", name="a"), "b": server("plain", name="b")}
    async with SessionHost(servers, limits) as host:
        async with host.open({"a": {"notes": ["a"]}, "b": {"notes": ["b"]}}, tools=["note", "nowhere"]) as session:
            assert [(tool.name, tool.server) for tool in session.tools] == [("note", "b")]
            assert session.missing == ("nowhere",)
            assert json.loads((await session.call("note", {"text": "1"})).text) == ["b", "1"]
            with pytest.raises(UnknownTool):
                await session.call("draw", {})
            assert json.loads((await session.call_on("a", "draw", {})).text)
            assert await session.effects() == {"a": {"notes": ["a"]}, "b": {"notes": ["b", "1"]}}
        async with host.open({"b": {}, "a": {}}) as session:
            assert {tool.server for tool in session.tools} == {"a"}


async def test_a_refused_init_and_an_unknown_server_are_named(server, limits):
    async with SessionHost({"plain": server("plain")}, limits) as host:
        with pytest.raises(InitFailed, match="server plain refused its init"):
            async with host.open({"plain": {"refuse": True}}):
                pass
        with pytest.raises(SessionError, match="no server 'plian'; the servers file has plain"):
            async with host.open({"plian": {}}):
                pass


async def test_calls_of_one_session_run_one_at_a_time(server, limits):
    async with SessionHost({"plain": server("plain")}, limits) as host:
        async with host.open({"plain": {}}) as session, trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(session.call, "note", {"text": str(number)})
        async with host.open({"plain": {}}) as session:
            answers = []

            async def call(session, number):
                answers.append(len(json.loads((await session.call("note", {"text": str(number)})).text)))

            async with trio.open_nursery() as nursery:
                for number in range(20):
                    nursery.start_soon(call, session, number)
            assert answers == list(range(1, 21))


async def test_what_the_block_raises_is_raised_as_it_is(server, limits):
    with pytest.raises(KeyError):
        async with SessionHost({"plain": server("plain")}, limits) as host:
            async with host.open({"plain": {}}):
                raise KeyError("mine")


async def test_a_cancelled_call_ends_its_session_and_nothing_else(server, limits):
    async with SessionHost({"plain": server("plain")}, limits) as host:
        async with host.open({"plain": {}}) as session, host.open({"plain": {}}) as other:
            with trio.move_on_after(0.2) as scope:
                await session.call("hang", {})
            assert scope.cancelled_caught
            with pytest.raises(SessionClosed, match="cancelled in tool hang"):
                await session.call("note", {"text": "x"})
            assert json.loads((await other.call("note", {"text": "x"})).text) == ["x"]


async def test_a_full_host_makes_wait_and_then_says_so(server, limits):
    limits = HostLimits(open=1, room_timeout=0.3)
    async with SessionHost({"plain": server("plain")}, limits) as host:
        async with host.open({"plain": {}}):
            with pytest.raises(HostFull, match="1 of 1 places"):
                async with host.open({"plain": {}}):
                    pass
        async with host.open({"plain": {}}):
            pass


async def test_where_sessions_are_fresh_processes_a_template_opens_afresh_and_says_why(server, limits):
    async with SessionHost({"plain": server("plain")}, limits) as host:
        async with host.template({"plain": {"notes": ["t"]}}) as template:
            assert "it runs as a fresh process" in template.reason
            async with template.clone() as one, template.clone() as other:
                await one.call("note", {"text": "1"})
                assert await other.effects() == {"plain": {"notes": ["t"]}}
                with pytest.raises(CannotBranch, match="server plain can't be cloned: it runs as a fresh process"):
                    async with one.branch():
                        pass


def test_it_runs_on_asyncio_too(server, limits):
    import anyio

    async def main():
        async with SessionHost({"plain": server("plain")}, limits) as host:
            async with host.open({"plain": {}}) as session:
                return (await session.call("note", {"text": "x"})).text

    assert anyio.run(main) == '["x"]'


async def test_requests_of_the_server_are_answered(server, limits):
    async with SessionHost({"plain": server("plain")}, limits) as host:
        async with host.open({"plain": {}}) as session:
            pong = json.loads((await session.call("ask", {"method": "ping"})).text)
            assert pong == {"jsonrpc": "2.0", "id": "mine", "result": {}}
            refusal = json.loads((await session.call("ask", {"method": "sampling/createMessage"})).text)
            assert refusal["error"]["code"] == -32601
