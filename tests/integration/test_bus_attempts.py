"""Attempts on the log of a real server: there before they start, for whoever takes over."""

import pytest
import trio

from protocol import subjects
from protocol.bus import connect
from protocol.records import Attempts

pytestmark = pytest.mark.nats


async def test_records_of_several_engines_come_back_in_the_order_they_were_logged(nats_config, run):
    first = Attempts(run, 3, "a1", 0, started=((0, 0, 0), (0, 1, 0)))
    second = Attempts(run, 3, "b2", 0, started=((0, 1, 1),), failed=((0, 1, 0, "actor"),))
    third = Attempts(run, 3, "a1", 1, failed=((0, 0, 0, "user"),))
    with trio.fail_after(30):
        async with connect(nats_config, run) as bus:
            for record in (first, second, third, second):  # the last one: sent again, logged once
                await bus.publish_attempts(record)
            await bus.publish_attempts(Attempts(run, 30, "a1", 0))
        async with connect(nats_config, run) as bus:
            assert await bus.attempts(3) == [first, second, third]
            assert await bus.attempts(4) == []


async def test_a_stream_from_before_attempts_were_logged_takes_them_too(nats_config, run):
    with trio.fail_after(30):
        async with connect(nats_config, run) as bus:
            core = bus._core

            async def narrow():
                info = await core.connection.js.stream_info(core.stream.name)
                await core.connection.js.update_stream(info.config.evolve(subjects=[subjects.trajectories(run)]))

            await bus._call(narrow)
        async with connect(nats_config, run) as bus:
            record = Attempts(run, 0, "a1", 0, started=((0, 0, 0),))
            await bus.publish_attempts(record)
            assert await bus.attempts(0) == [record]
