"""What the bus costs over raw nats-py: 10 kB trajectories, 50 publishers at once, one real server.

    python benchmarks/bus.py [--count 2000]

Rows are run in turn, several rounds, on the same server; the ratio is of medians, to raw nats-py's. CPU
milliseconds are this process's (the server is another), encoding of the record included in every row.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable

import nats
import trio

from protocol import subjects
from protocol.bus import connect
from protocol.config import Nats
from protocol.records import Message, TokenArrays, Trajectory, TrajectoryId, Verdict, encode
from protocol.server import NatsServer, free_port

PUBLISHERS = 50
ROUNDS = 5


def trajectory(run: str, number: int) -> Trajectory:
    """About 10 kB of JSON: 400 tokens and 3 kB of text."""
    sampled = 200
    return Trajectory(
        id=TrajectoryId(run, 0, number, 0),
        task="travel/refund/train/3",
        domain="travel",
        family="refund",
        policy_version=0,
        messages=tuple(Message("user" if turn % 2 else "assistant", "lorem ipsum " * 40) for turn in range(10)),
        verdict=Verdict(1.0),
        finish="done",
        tokens=TokenArrays.pack(range(400), [0] * 200 + [1] * sampled, [-0.5] * sampled, [0] * sampled),
    )


async def raw(url: str, run: str, count: int) -> None:
    """nats-py's own JetStream publish with the message id alone."""
    client = await nats.connect(url)
    js = client.jetstream()
    await js.add_stream(name=subjects.stream(run), subjects=subjects.stream_subjects(run))

    async def publisher(start: int) -> None:
        for number in range(start, count, PUBLISHERS):
            record = trajectory(run, number)
            await js.publish(subjects.trajectory(record.id), encode(record), headers={"Nats-Msg-Id": str(record.id)})

    async with asyncio.TaskGroup() as group:
        for start in range(PUBLISHERS):
            group.create_task(publisher(start))
    await client.close()


async def _publisher(bus, run: str, start: int, count: int) -> None:
    for number in range(start, count, PUBLISHERS):
        assert await bus.publish_trajectory(trajectory(run, number))


async def under_asyncio(url: str, run: str, count: int) -> None:
    async with connect(Nats(url=url), run) as bus, asyncio.TaskGroup() as group:
        for start in range(PUBLISHERS):
            group.create_task(_publisher(bus, run, start, count))


async def under_trio(url: str, run: str, count: int) -> None:
    async with connect(Nats(url=url), run) as bus, trio.open_nursery() as nursery:
        for start in range(PUBLISHERS):
            nursery.start_soon(_publisher, bus, run, start, count)


def measure(go: Callable[[], Awaitable[None]], count: int) -> tuple[float, float]:
    """(publishes a second, CPU milliseconds a publish)."""
    wall, cpu = time.perf_counter(), time.process_time()
    go()
    return count / (time.perf_counter() - wall), 1000 * (time.process_time() - cpu) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=2000, help="trajectories a round")
    count = parser.parse_args().count
    ways = {
        "raw nats-py": lambda url, run: asyncio.run(raw(url, run, count)),
        "bus, asyncio": lambda url, run: asyncio.run(under_asyncio(url, run, count)),
        "bus, trio": lambda url, run: trio.run(under_trio, url, run, count),
    }
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as folder, NatsServer(folder, f"nats://127.0.0.1:{free_port()}") as server:
        for turn in range(ROUNDS):
            for index, (name, way) in enumerate(ways.items()):
                run = f"bench-{turn}-{index}"
                results[name].append(measure(lambda way=way, run=run: way(server.url, run), count))
    size = len(encode(trajectory("bench-0-0", 0)))
    print(f"{count} trajectories of {size} bytes, {PUBLISHERS} publishers, medians of {ROUNDS} rounds")
    base = [statistics.median(column) for column in zip(*results["raw nats-py"], strict=True)]
    for name, rounds in results.items():
        rate, cpu = (statistics.median(column) for column in zip(*rounds, strict=True))
        print(
            f"{name:13} {rate:8.0f} a second ({rate / base[0]:.2f} ×)   {cpu:6.3f} CPU ms each ({cpu / base[1]:.2f} ×)"
        )


if __name__ == "__main__":
    main()
