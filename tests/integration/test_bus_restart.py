"""NATS dies (kill -9) and comes back on the same folder: nothing lost, nothing doubled, nobody noticed."""

from __future__ import annotations

import asyncio

import pytest
import trio

from protocol.bus import ServerUnreachable, connect
from protocol.config import Nats
from protocol.records import Batch, Ledger, PolicyVersion, Probe

pytestmark = pytest.mark.nats

PUBLISHERS = 20
EACH = 10


@pytest.fixture
def server(nats_server):
    return nats_server(restart=False)


async def _crash(server, away: float) -> None:
    """Kill the server; bring it back ``away`` seconds later."""
    await trio.to_thread.run_sync(server.kill)
    await trio.sleep(away)
    await trio.to_thread.run_sync(server.stop)
    await trio.to_thread.run_sync(server.start)


@pytest.mark.parametrize("away", [0.0, 1.0])
async def test_two_hundred_trajectories_over_two_crashes(server, run, make_trajectory, away):
    answers: list[bool] = []
    enough = trio.Event()

    async def publish(bus, group: int) -> None:
        for sample in range(EACH):
            answers.append(await bus.publish_trajectory(make_trajectory(run, 0, group, sample, tokens=2000)))
            if len(answers) >= 40:
                enough.set()

    with trio.fail_after(60):
        async with connect(Nats(url=server.url), run) as bus:
            async with trio.open_nursery() as nursery:
                for group in range(PUBLISHERS):
                    nursery.start_soon(publish, bus, group)
                await enough.wait()
                before = len(answers)
                await _crash(server, away)
                await _crash(server, away)
            assert before < PUBLISHERS * EACH, "the server died after the work was done: the test shows nothing"
            kept = await bus.trajectories(0)
            stored = await bus._call(bus._core.stream.all, f"endstate.{run}.trajectories.>")
    assert len(answers) == PUBLISHERS * EACH
    assert [(t.id.group, t.id.sample) for t in kept] == [(g, s) for g in range(PUBLISHERS) for s in range(EACH)]
    assert len(stored) == PUBLISHERS * EACH, "the stream itself holds each once"
    assert all(t == make_trajectory(run, 0, t.id.group, t.id.sample, tokens=2000) for t in kept)


def test_asyncio_rides_out_a_crash_too(server, run, make_trajectory):
    async def scenario():
        async with asyncio.timeout(60), connect(Nats(url=server.url), run) as bus:
            async with asyncio.TaskGroup() as group:
                for sample in range(100):
                    group.create_task(bus.publish_trajectory(make_trajectory(run, 0, 0, sample)))
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.stop)
                await asyncio.to_thread(server.start)
            return [t.id.sample for t in await bus.trajectories(0)]

    assert asyncio.run(scenario()) == list(range(100))


async def test_waits_and_acknowledgements_survive_a_crash(server, run):
    version = PolicyVersion(run, 1, "weights/1", {}, Probe(b"", b"", 0.05))
    heard: list[PolicyVersion] = []

    async def wait(bus) -> None:
        heard.append(await bus.wait_policy(1, 30))

    with trio.fail_after(60):
        async with connect(Nats(url=server.url), run) as engine, connect(Nats(url=server.url), run) as learner:
            await engine.publish_batch(Batch(run, 0, 0, 2, (), Ledger(0)))
            consumer = learner._core.consumer
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait, engine)
                await _crash(server, 0.5)
                await learner._call(consumer.acknowledge_step, 0)
                assert await learner.publish_policy(version) is True
            assert await learner._call(consumer.floor) == 1
    assert heard == [version]


async def test_a_server_that_stays_away_is_an_error_at_the_bound(server, run, make_trajectory):
    config = Nats(url=server.url, reconnect=1.0)
    with trio.fail_after(20):
        async with connect(config, run) as bus:
            await trio.to_thread.run_sync(server.kill)
            started = trio.current_time()
            with pytest.raises(ServerUnreachable, match=r"for 1 s \(nats\.reconnect\).*bin/nats"):
                await bus.publish_trajectory(make_trajectory(run))
            assert 0.9 < trio.current_time() - started < 3
            # Progress never holds up work, and isn't kept.
            await bus.emit("progress", {"done": 1})


async def test_a_supervised_server_comes_back_by_itself(nats_server, run, make_trajectory):
    server = nats_server(restart=True)
    with trio.fail_after(60):
        async with connect(Nats(url=server.url), run) as bus:
            for sample in range(3):
                await trio.to_thread.run_sync(server.kill)
                assert await bus.publish_trajectory(make_trajectory(run, 0, 0, sample)) is True
            assert len(await bus.trajectories(0)) == 3
