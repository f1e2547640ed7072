"""Servers that misbehave: each ends in one named outcome within its bound, the host and its other sessions live."""

import json
from dataclasses import replace

import pytest
import trio

from rollout_engine.sessions import (
    InitFailed,
    ProtocolViolation,
    ResultTooLarge,
    ServerStartFailed,
    SessionClosed,
    SessionDied,
    SessionHost,
    SessionTimeout,
)

pytestmark = pytest.mark.usefixtures("clean")


async def lives(host, server):
    async with host.open({server: {}}) as session:
        assert json.loads((await session.call("note", {"text": "x"})).text) == ["x"]


@pytest.mark.parametrize(
    "tool, arguments, outcome, said",
    [
        (
            "exit",
            {},
            SessionDied,
            r"ended in tool exit \(exit status 3\)\n.*standard error, which all its sessions share: I have",
        ),
        ("crash", {}, SessionDied, r"ended in tool crash \(killed by SIGSEGV\)"),
        ("hang", {}, SessionTimeout, "did not answer tool hang within 0.5 s and was killed"),
        ("spin", {}, SessionTimeout, "did not answer tool spin within 0.5 s and was killed"),
        ("big", {"bytes": 50_000_000}, ResultTooLarge, "answered tool big with a message of more than 1048576 bytes"),
        ("torn", {}, ProtocolViolation, "a message with other output in its line: 'half a line{"),
        ("malformed", {}, ProtocolViolation, "malformed JSON"),
        ("foreign", {}, ProtocolViolation, 'JSON, but no JSON-RPC: \'{"hello": "world"}\''),
        ("flood", {}, ProtocolViolation, "more than 65536 bytes beside the protocol"),
    ],
)
async def test_a_call_that_goes_wrong(server, limits, tool, arguments, outcome, said):
    async with SessionHost({"plain": server("plain")}, limits) as host:
        async with host.open({"plain": {}}) as session, host.open({"plain": {}}) as other:
            began = trio.current_time()
            with pytest.raises(outcome, match=f"server plain .*{said}") as caught:
                await session.call(tool, arguments, timeout=0.5 if outcome is SessionTimeout else 20)
            assert caught.value.server == "plain" and trio.current_time() - began < 10
            with pytest.raises(SessionClosed, match="this session ended before: server plain"):
                await session.call("note", {"text": "never sent"})
            assert json.loads((await other.call("note", {"text": "x"})).text) == ["x"]
        await lives(host, "plain")


async def test_a_whole_line_of_other_output_is_passed_over(server, limits):
    """As the protocol's own client does; it is shown when something goes wrong later."""
    async with SessionHost({"plain": server("plain", "print")}, limits) as host:
        async with host.open({"plain": {}}) as session:
            assert (await session.call("stray", {"text": "look here"})).text == "done"
            with pytest.raises(SessionDied, match="beside the protocol: welcome\n.*look here"):
                await session.call("exit", {})


async def test_an_init_that_hangs_or_exits(server, limits):
    async with SessionHost({"plain": server("plain")}, replace(limits, open_timeout=0.5)) as host:
        with pytest.raises(SessionTimeout, match="0.5 s"):
            async with host.open({"plain": {"hang": True}}):
                pass
    async with SessionHost({"plain": server("plain")}, limits) as host:
        with pytest.raises(SessionDied, match=r"exit status 9\)\n.*out of order"):
            async with host.open({"plain": {"exit": True}}):
                pass
        await lives(host, "plain")


@pytest.mark.parametrize(
    "shape, said",
    [("fail", "RuntimeError: no licence"), ("quit", "exit status 4"), ("hang", "within 1 s")],
)
async def test_a_server_that_does_not_start(server, limits, shape, said):
    async with SessionHost(
        {"bad": server("plain", shape), "good": server("plain")}, replace(limits, start_timeout=1)
    ) as host:
        with pytest.raises((ServerStartFailed, SessionTimeout), match=said):
            async with host.open({"bad": {}}):
                pass
        await lives(host, "good")


async def test_a_program_that_is_not_there(server, limits):
    spec = replace(server("plain"), command=("/no/such/program",))
    async with SessionHost({"plain": spec}, limits) as host:
        with pytest.raises(ServerStartFailed, match="No such file or directory"):
            async with host.open({"plain": {}}):
                pass


async def test_what_a_server_starts_ends_with_its_session(server, limits):
    """Its process group at once; what left the group with the host (which the fixture sees)."""
    async with SessionHost({"plain": server("plain")}, limits) as host:
        async with host.open({"plain": {}}) as session:
            child = int((await session.call("child", {})).text)
            await session.call("orphan", {})
        with pytest.raises(ProcessLookupError):
            import os

            os.kill(child, 0)


@pytest.mark.parametrize(
    "result, said",
    [
        ("3", "Expected `object`, got `int`"),
        ('{"content": "text"}', r"Expected `array \| null`, got `str` - at `\$.content`"),
        ('{"content": ["text"]}', r"Expected `object`, got `str` - at `\$.content\[0\]`"),
        ('{"content": [{"type": "text", "text": 5}]}', r"Expected `str`, got `int` - at `\$.content\[0\].text`"),
    ],
)
async def test_an_answer_that_is_no_tool_result_is_a_violation(server, limits, result, said):
    async with SessionHost({"plain": server("plain")}, limits) as host:
        async with host.open({"plain": {}}) as session:
            with pytest.raises(
                ProtocolViolation, match="answered tool answer with what the protocol does not .*" + said
            ):
                await session.call("answer", {"result": result})
        await lives(host, "plain")


@pytest.mark.parametrize(
    "line, said",
    [
        ("\0not for you", "malformed control line"),
        ('{"jsonrpc": "2.0", "id": 1, "result": ' + "[" * 5000, "malformed JSON .it is nested too deeply"),
    ],
)
async def test_a_line_that_cannot_be_read_is_a_violation(server, limits, line, said):
    async with SessionHost({"plain": server("plain")}, limits) as host:
        async with host.open({"plain": {}}) as session:
            with pytest.raises(ProtocolViolation, match=said):
                await session.call("line", {"line": line})
        await lives(host, "plain")


@pytest.mark.parametrize(
    "listed, outcome, said",
    [
        ('{"tools": 3}', ProtocolViolation, "Expected `array`, got `int`"),
        ('{"tools": [{}]}', ProtocolViolation, "missing required field `name`"),
        ('{"tools": [{"name": "a", "inputSchema": []}]}', ProtocolViolation, "Expected `object . null`, got `array`"),
        (
            '{"tools": [{"name": "a", "inputSchema": {"properties": []}}]}',
            ProtocolViolation,
            "the properties of tool a are no object",
        ),
        ('{"nextCursor": "for ever"}', SessionTimeout, "did not answer listing its tools within 2 s"),
    ],
)
async def test_tools_that_cannot_be_listed_are_told(server, limits, listed, outcome, said):
    spec = replace(server("plain", mode="spawn"), env={"LISTED": listed})
    async with SessionHost({"plain": spec}, replace(limits, start_timeout=2.0)) as host:
        with pytest.raises(outcome, match=said):
            await host.examine("plain")


@pytest.mark.parametrize("value, said", [("\ud800", "half of a surrogate pair"), (object(), "type object is")])
async def test_arguments_that_cannot_be_sent_are_the_callers_doing(server, limits, value, said):
    async with SessionHost({"plain": server("plain")}, limits) as host:
        async with host.open({"plain": {}}) as session:
            refused = await session.call("note", {"text": value})
            assert refused.is_error and "the arguments can't be sent as JSON: " in refused.text and said in refused.text
            assert json.loads((await session.call("note", {"text": "x"})).text) == ["x"]
        with pytest.raises(InitFailed, match="can't be sent as JSON"):
            async with host.open({"plain": {"notes": [value]}}):
                pass


async def test_half_a_surrogate_pair_in_a_result_is_read_as_a_question_mark(server, limits):
    async with SessionHost({"plain": server("plain")}, limits) as host:
        async with host.open({"plain": {}}) as session:
            result = r'{"content": [{"type": "text", "text": "caf\udce9 \ud83d\ude00"}]}'
            assert (await session.call("answer", {"result": result})).text == "caf? \U0001f600"


@pytest.mark.parametrize("mode", ["auto", "spawn"])
@pytest.mark.parametrize("env", [{"A=B": "c"}, {"A": "\0"}])
async def test_an_environment_that_cannot_be_is_a_server_that_cannot_be_started(server, limits, mode, env):
    spec = replace(server("plain", mode=mode), env=env)
    async with SessionHost({"plain": spec}, limits) as host:
        with pytest.raises(ServerStartFailed, match="server plain can't be started: .*(illegal environment|null byte)"):
            await host.examine("plain")
