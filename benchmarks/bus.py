"""What the bus costs over raw nats-py: whole trajectories, 50 publishers at once, one real server.

    bin/_python engine benchmarks/bus.py [--size 10kB 1MB 133k-tokens] [--count N] [--rounds 5]

The raw publisher is given the very bytes that the bus makes of the same trajectories, ready to send, and sends
them with nats-py's own JetStream publish and a message id; the bus encodes, checks sizes, refuses doubles for ever
and rides out restarts. A trajectory of 133k tokens fits no message of a server with the default ``max_payload``
(1 MiB): the bus sends its arrays to the object store, the raw row does the same with nats-py's own object store.

Rows are run in turn, several rounds, on the same server; ratios are of medians, to raw nats-py's. Making the
records, connecting and creating streams are not timed. CPU milliseconds are this process's; the server is another.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import nats
import trio
from nats.js import api

from protocol import subjects
from protocol.asyncio_bus import AsyncioBus
from protocol.bus import connect
from protocol.config import Nats
from protocol.records import Message, TokenArrays, Trajectory, TrajectoryId, Verdict, encode
from protocol.server import NatsServer, free_port

PUBLISHERS = 50
WORDS = "lorem ipsum "


@dataclass(frozen=True)
class Size:
    """A kind of trajectory: its tokens (half of them sampled), the characters of its text, how many make a round."""

    tokens: int
    text: int
    count: int


SIZES = {
    "10kB": Size(tokens=400, text=4_800, count=2000),
    "1MB": Size(tokens=60_000, text=279_000, count=100),
    "133k-tokens": Size(tokens=133_000, text=340_000, count=50),
}
"""Of a trajectory's JSON; the last takes 2 MB."""


@dataclass(frozen=True)
class Measurement:
    rate: float
    """Trajectories a second."""
    cpu: float
    """CPU milliseconds a trajectory."""


def trajectories(run: str, size: Size, count: int) -> list[Trajectory]:
    sampled = size.tokens // 2
    turns = 10
    arrays = TokenArrays.pack(
        range(size.tokens), [0] * (size.tokens - sampled) + [1] * sampled, [-0.5] * sampled, [0] * sampled
    )
    text = WORDS * (size.text // turns // len(WORDS))
    return [
        Trajectory(
            id=TrajectoryId(run, 0, number, 0),
            task="travel/refund/train/3",
            domain="travel",
            family="refund",
            policy_version=0,
            messages=tuple(Message("user" if turn % 2 else "assistant", text) for turn in range(turns)),
            verdict=Verdict(1.0),
            finish="done",
            tokens=arrays,
        )
        for number in range(count)
    ]


async def raw(config: Nats, records: list[Trajectory]) -> Measurement:
    """nats-py's own JetStream publish of ready bytes, with the message id alone."""
    run = records[0].id.run
    await _create(config, run)
    client = await nats.connect(config.url)
    js = client.jetstream(timeout=60)
    store = await js.object_store(subjects.objects_bucket(run))
    ready = []
    for record in records:
        whole = encode(record)
        fits = len(whole) + 100 < client.max_payload
        envelope = whole if fits else encode(msgspec.structs.replace(record, tokens=None))
        ready.append(
            (str(record.id), subjects.trajectory(record.id), envelope, None if fits else encode(record.tokens))
        )

    async def publisher(start: int) -> None:
        for id, subject, data, arrays in ready[start::PUBLISHERS]:
            if arrays is not None:
                # The chunk size of its own default, named so that a digest isn't taken for nothing.
                await store.put(id, arrays, api.ObjectMeta(id))
            await js.publish(subject, data, headers={"Nats-Msg-Id": id})

    async def work() -> None:
        async with asyncio.TaskGroup() as group:
            for start in range(PUBLISHERS):
                group.create_task(publisher(start))

    try:
        return await _measured(work, len(records))
    finally:
        await client.close()


async def _publisher(bus, records: list[Trajectory]) -> None:
    for record in records:
        assert await bus.publish_trajectory(record)


async def under_asyncio(config: Nats, records: list[Trajectory]) -> Measurement:
    async with connect(config, records[0].id.run) as bus:

        async def work() -> None:
            async with asyncio.TaskGroup() as group:
                for start in range(PUBLISHERS):
                    group.create_task(_publisher(bus, records[start::PUBLISHERS]))

        return await _measured(work, len(records))


async def under_trio(config: Nats, records: list[Trajectory]) -> Measurement:
    async with connect(config, records[0].id.run) as bus:

        async def work() -> None:
            async with trio.open_nursery() as nursery:
                for start in range(PUBLISHERS):
                    nursery.start_soon(_publisher, bus, records[start::PUBLISHERS])

        return await _measured(work, len(records))


async def _measured(work: Callable, count: int) -> Measurement:
    wall, cpu = time.perf_counter(), time.process_time()
    await work()
    return Measurement(count / (time.perf_counter() - wall), 1000 * (time.process_time() - cpu) / count)


async def _create(config: Nats, run: str) -> None:
    """The run's stream and buckets, the same for every row."""
    bus = AsyncioBus(config, run)
    await bus.open()
    await bus.close()


async def _delete(config: Nats, run: str) -> None:
    """Make room for the next round."""
    client = await nats.connect(config.url)
    for name in (subjects.stream(run), f"OBJ_{subjects.objects_bucket(run)}", f"KV_{subjects.actors_bucket(run)}"):
        await client.jetstream().delete_stream(name)
    await client.close()


WAYS: dict[str, Callable[[Nats, list[Trajectory]], Measurement]] = {
    "raw nats-py": lambda config, records: asyncio.run(raw(config, records)),
    "bus, asyncio": lambda config, records: asyncio.run(under_asyncio(config, records)),
    "bus, trio": lambda config, records: trio.run(under_trio, config, records),
}


def compare(config: Nats, name: str, count: int, rounds: int) -> None:
    """Measure every way at one size, and print its rows."""
    size = SIZES[name]
    bytes_each = len(encode(trajectories("bench", size, 1)[0]))
    print(
        f"\n{name}: {count} trajectories of {bytes_each:,} bytes, {PUBLISHERS} publishers, medians of {rounds} rounds"
    )
    results: dict[str, list[Measurement]] = {way: [] for way in WAYS}
    for turn in range(rounds):
        for index, (way, measure) in enumerate(WAYS.items()):
            run = f"bench-{name.lower()}-{turn}-{index}"
            results[way].append(measure(config, trajectories(run, size, count)))
            asyncio.run(_delete(config, run))
    middle = {
        way: Measurement(statistics.median(m.rate for m in all_), statistics.median(m.cpu for m in all_))
        for way, all_ in results.items()
    }
    base = middle["raw nats-py"]
    for way, found in middle.items():
        megabytes = found.rate * bytes_each / 1e6
        print(
            f"  {way:13} {found.rate:8.0f} a second {megabytes:8.1f} MB/s ({found.rate / base.rate:.2f} ×)"
            f"   {found.cpu:7.3f} CPU ms each ({found.cpu / base.cpu:.2f} ×)",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", nargs="+", choices=SIZES, default=list(SIZES), help="which trajectories")
    parser.add_argument("--count", type=int, help="trajectories a round; by default as many as the size suggests")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, NatsServer(folder, f"nats://127.0.0.1:{free_port()}") as server:
        config = Nats(url=server.url)
        for name in arguments.size:
            compare(config, name, arguments.count or SIZES[name].count, arguments.rounds)


if __name__ == "__main__":
    main()
