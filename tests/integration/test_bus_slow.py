"""Readers that stall, answers that are lost, deliveries that come twice: nothing is lost and nothing trained twice."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlparse

import pytest
import trio

from learner.batches import NatsBatches
from protocol import subjects
from protocol.bus import ServerUnreachable, connect
from protocol.config import Config, Learner, Nats
from protocol.records import ActorStatus, Batch, GroupRecord, Ledger, PolicyVersion, Probe

pytestmark = pytest.mark.nats

ROOT = Path(__file__).parents[2]


async def _log_step(bus, make_trajectory, step: int, samples: int = 2, **fields) -> None:
    made = [make_trajectory(bus.run, step, 0, sample, **fields) for sample in range(samples)]
    for trajectory in made:
        await bus.publish_trajectory(trajectory)
    group = GroupRecord(
        0, made[0].task, tuple(t.id for t in made), tuple(float(s % 2) for s in range(samples)), "trained"
    )
    await bus.publish_batch(Batch(bus.run, step, step, samples, (group,), Ledger(samples, trained=samples)))


async def test_a_subscriber_that_never_reads_holds_up_nobody(nats_server, run, make_trajectory):
    """As a stalled ``nats sub`` would: its socket fills, and the server must let go of it."""
    url = urlparse(nats_server().url)
    with socket.create_connection((url.hostname, url.port)) as stalled:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.sendall(b'CONNECT {"verbose":false}\r\nSUB endstate.> 1\r\nPING\r\n')
        with trio.fail_after(60):
            async with connect(Nats(url=url.geturl()), run) as bus:
                made = [make_trajectory(run, 0, 0, n, tokens=40_000) for n in range(60)]
                async with trio.open_nursery() as nursery:
                    for trajectory in made:
                        nursery.start_soon(bus.publish_trajectory, trajectory)
                assert await bus.trajectories(0) == made, "60 trajectories of 0.5 MB"


def test_a_learner_that_was_stopped_reads_every_step_once(nats_server, run, make_trajectory, tmp_path):
    """Stopped in mid-wait (SIGSTOP) while 30 MB pass by, then let go on."""
    server, steps = nats_server(), 12
    code = (
        "import sys; from learner.batches import NatsBatches; from protocol.config import Config, Nats\n"
        "with NatsBatches(Config(run=sys.argv[1], nats=Nats(url=sys.argv[2]))) as batches:\n"
        f"    for step in range({steps}):\n"
        "        delivery = batches.next(step)\n"
        "        ids = [id for group in delivery.batch.groups for id in group.trajectories]\n"
        "        print(step, len(delivery.fetch(ids)), flush=True)\n"
        "        delivery.acknowledge()\n"
    )
    learner = subprocess.Popen(
        [sys.executable, "-c", code, run, server.url], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:

        async def roll_out() -> None:
            async with connect(Nats(url=server.url), run) as bus:
                await _log_step(bus, make_trajectory, 0)
                assert await trio.to_thread.run_sync(learner.stdout.readline) == "0 2\n"
                os.kill(learner.pid, signal.SIGSTOP)
                for step in range(1, steps):
                    await _log_step(bus, make_trajectory, step, samples=6, tokens=40_000)
                os.kill(learner.pid, signal.SIGCONT)

        trio.run(roll_out)
        printed, _ = learner.communicate(timeout=60)
    finally:
        learner.kill()
        learner.wait()
    assert printed.splitlines() == [f"{step} 6" for step in range(1, steps)]


def test_lost_acknowledgements_train_nothing_twice(nats_server, run, make_trajectory):
    """The server dies between delivery and acknowledgement, again and again, and another reader takes deliveries."""
    server = nats_server(restart=True)
    config = Config(run=run, nats=Nats(url=server.url), learner=Learner(batch_timeout=20))

    async def roll_out() -> None:
        async with connect(config.nats, run) as bus:
            for step in range(4):
                await _log_step(bus, make_trajectory, step)

    trio.run(roll_out)
    trained = []
    with NatsBatches(config) as first, NatsBatches(config) as second:
        for step in range(4):
            delivery = (first, second)[step % 2].next(step)
            trained.append(delivery.batch.step)
            if step == 1:
                # A delivery that nobody acknowledges: it comes again.
                consumer = second._bus.consumer
                assert second._portal.call(consumer._pull, 5.0) is not None
            if step in (0, 2):
                server.kill()
            delivery.acknowledge()
            delivery.acknowledge()
        floor = first._portal.call(first._bus.consumer.floor)
        last = first._portal.call(first._bus.stream.last, subjects.batch(run, 3))
    assert trained == [0, 1, 2, 3]
    assert floor == last.sequence


async def test_every_operation_rides_out_crashes(nats_server, run, make_trajectory):
    """Each runs again and again, from a connection of its own, while the server is killed three times.

    Whether a publish was the first isn't asked: one whose answer died with the server is sent again.
    """
    server = nats_server(restart=True)
    config, counts, over = Nats(url=server.url), dict.fromkeys(range(6), 0), trio.Event()

    async def arrays(bus, n: int) -> None:
        large = make_trajectory(run, 0, 0, n, tokens=250_000)
        await bus.publish_trajectory(large)
        assert await bus.fetch([large.id]) == [large]

    async def batches(bus, n: int) -> None:
        await bus.publish_batch(Batch(run, n, n, 2, (), Ledger(0)))
        assert (await bus.batch(n)).step == n
        await bus._call(bus._core.consumer.acknowledge_step, n)

    async def policies(bus, n: int) -> None:
        await bus.publish_policy(PolicyVersion(run, n, "w", {}, Probe(b"", b"", 0.1)))
        assert (await bus.wait_policy(n, 20)).version == n
        assert [version.version for version in await bus.policies()] == list(range(n + 1))

    async def actors(bus, n: int) -> None:
        await bus.put_actor(ActorStatus("a", "http://a", "tiny", n, True))
        assert [actor.version for actor in await bus.actors()] == [n]

    async def retention(bus, n: int) -> None:
        await bus.publish_horizon(n)
        assert await bus.horizon() == n
        await bus._call(bus._core.retention.collect, 0, 0)

    async def opening(bus, n: int) -> None:
        async with connect(config, f"{run}-{n}") as other:
            await other.publish_trajectory(make_trajectory(other.run))
            assert await other.steps() == [0]
            await other.emit("progress", {"n": n})

    async def repeat(number: int, operation) -> None:
        async with connect(config, run) as bus:
            while not over.is_set():
                await operation(bus, counts[number])
                counts[number] += 1

    with trio.fail_after(100):
        async with trio.open_nursery() as nursery:
            for number, operation in enumerate((arrays, batches, policies, actors, retention, opening)):
                nursery.start_soon(repeat, number, operation)
            for kill in range(3):
                before = dict(counts)
                while not all(counts[number] >= before[number] + 2 for number in counts):
                    await trio.sleep(0.05)
                await trio.to_thread.run_sync(server.kill)
                while server.restarts <= kill:
                    await trio.sleep(0.05)
            before = dict(counts)
            while not all(counts[number] >= before[number] + 2 for number in counts):
                await trio.sleep(0.05)
            over.set()
    assert server.restarts == 3


def test_the_time_of_a_stall_is_bounded(nats_server, run, make_trajectory):
    """A server that is frozen, not gone: requests in flight end at nats.reconnect."""
    server = nats_server(restart=False)

    async def scenario() -> float:
        async with connect(Nats(url=server.url, publish_timeout=0.5, reconnect=1.0, connect_timeout=1.0), run) as bus:
            os.kill(server.pid, signal.SIGSTOP)
            started = time.monotonic()
            try:
                with pytest.raises(ServerUnreachable, match=r"nats\.reconnect"):
                    await bus.publish_trajectory(make_trajectory(run))
                return time.monotonic() - started
            finally:
                os.kill(server.pid, signal.SIGCONT)

    assert trio.run(scenario) < 4
