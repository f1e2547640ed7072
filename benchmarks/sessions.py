"""What a session costs: a fresh process, a fork and a clone of the same server in one run; memory; a soak.

CPU is that of everything: the sessions' processes by wait4, the fork servers and this process. Run:

    bin/_python engine benchmarks/sessions.py                       # a small server of our own
    bin/_python engine benchmarks/sessions.py --servers servers.yaml --python PYTHON --config init.json
    ... --open 144 500                                              # memory of sessions that are open together
    ... --soak 10000                                                # leaks, and the last latencies against the first

init.json holds the init configuration by server: ``{"bookings": {...}}``; it names the servers of a session.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import trio

from rollout_engine.sessions import HostLimits, ServerSpec, Session, SessionHost, load_servers
from rollout_engine.sessions.search.service import open_search

OURS = Path(__file__).parents[1] / "tests" / "rollout_engine" / "sessions" / "servers" / "bookings.py"
Open = Callable[[int], AbstractAsyncContextManager[Session]]


@dataclass
class Cost:
    """Of one session, in seconds: the median of opening, and the mean of wall and CPU time of its whole life."""

    name: str
    opening: float
    wall: float
    cpu: float

    def line(self, fresh: float) -> str:
        return (
            f"{self.name:>14}: {1 / self.wall:8.1f} sessions/s, open {1e3 * self.opening:8.1f} ms, "
            f"CPU {1e3 * self.cpu:8.1f} ms a session, {fresh / self.cpu:6.1f} x less than a fresh process"
        )


def standing_cpu() -> float:
    """CPU seconds so far of this process and of what runs below it."""
    total = time.process_time()
    for child in psutil.Process().children(recursive=True):
        total += int(Path(f"/proc/{child.pid}/schedstat").read_text().split()[0]) / 1e9
    return total


async def cost(name: str, open_session: Open, count: int, concurrency: int) -> Cost:
    """``count`` sessions, ``concurrency`` at once. No other session may be open, except templates."""
    ended, opening = 0.0, []
    limiter = trio.CapacityLimiter(concurrency)

    async def one(seed: int) -> None:
        nonlocal ended
        async with limiter:
            began = time.perf_counter()
            async with open_session(seed) as session:
                opening.append(time.perf_counter() - began)
            ended += sum(usage.cpu for usage in session.usage.values())

    before, began = standing_cpu(), time.perf_counter()
    async with trio.open_nursery() as nursery:
        for seed in range(count):
            nursery.start_soon(one, seed)
    wall = time.perf_counter() - began
    cpu = standing_cpu() - before + ended
    return Cost(f"{name} x{concurrency}", statistics.median(opening), wall / count, cpu / count)


async def compare(specs: dict[str, ServerSpec], config: dict, count: int, concurrency: int) -> None:
    """The three ways after each other, and the fresh process again at the end: the machine may have changed."""
    fresh_specs = {name: replace(spec, mode="spawn") for name, spec in specs.items()}
    async with SessionHost(fresh_specs) as fresh_host, SessionHost(specs) as host:
        for server in config:
            await fresh_host.examine(server)
            print(f"{server}: {await host.examine(server)}")

        def fresh(seed: int):
            return fresh_host.open(config, seed=seed)

        def fork(seed: int):
            return host.open(config, seed=seed)

        first = await cost("fresh process", fresh, max(count // 50, 4), 2)
        for times in (1, concurrency):
            print((await cost("fork", fork, count, times)).line(first.cpu))
        async with host.template(config) as template:
            if template.reason:
                print(f"no clones: {template.reason}")
            else:
                for times in (1, concurrency):
                    print((await cost("clone", template.clone, count, times)).line(first.cpu))
        for measured in (first, await cost("fresh process", fresh, max(count // 50, 4), 2)):
            print(measured.line(first.cpu))


def pss(pid: int) -> int:
    """Proportional memory of a process in bytes: shared pages count in parts."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


async def memory(specs: dict[str, ServerSpec], config: dict, counts: list[int]) -> None:
    """PSS of everything below this process, in MB a session, with so many sessions open and initialized."""
    async with SessionHost(specs, HostLimits(memory_bytes=1 << 40)) as host:
        async with host.open(config):
            pass
        for count in counts:
            async with AsyncExitStack() as stack:
                for seed in range(count):
                    await stack.enter_async_context(host.open(config, seed=seed))
                below = psutil.Process().children(recursive=True)
                total = sum(pss(process.pid) for process in below)
                each = f"{total / count / 1e6:.1f} MB PSS a session"
                print(f"{count} open: {each}, the fork servers' part included, {total / 1e6:.0f} MB in all")


async def soak(specs: dict[str, ServerSpec], config: dict, count: int, concurrency: int) -> None:
    """``count`` sessions, then what is left: processes, descriptors, memory, and how long the last ones took."""
    async with SessionHost(specs) as host:
        async with host.open(config):
            pass
        latencies: list[float] = []
        limiter = trio.CapacityLimiter(concurrency)

        async def one(seed: int) -> None:
            async with limiter:
                began = time.perf_counter()
                async with host.open(config, seed=seed):
                    pass
                latencies.append(time.perf_counter() - began)

        me = psutil.Process()
        standing = []
        for start in range(0, count, 100):
            async with trio.open_nursery() as nursery:
                for seed in range(start, min(start + 100, count)):
                    nursery.start_soon(one, seed)
            below = me.children(recursive=True)
            memory = sum(pss(process.pid) for process in (me, *below))
            standing.append((len(below), me.num_fds() + sum(process.num_fds() for process in below), memory / 1e6))
            if start // 100 in (0, 1) or start + 100 >= count or not start % 1000:
                recent = latencies[-100:]
                print(
                    f"{len(latencies):>6} sessions: {len(below)} processes, {standing[-1][1]} descriptors, "
                    f"{memory / 1e6:.1f} MB, the last hundred {1e3 * statistics.median(recent):.1f} ms"
                )
        first, last = statistics.median(latencies[:100]), statistics.median(latencies[-100:])
        grown = [after - before for before, after in zip(standing[0], standing[-1], strict=True)]
        print(
            f"grown: {grown[0]} processes, {grown[1]} descriptors, {grown[2]:.1f} MB; "
            f"last hundred / first hundred: {last / first:.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--servers", help="a servers.yaml; default: a small server of our own")
    parser.add_argument("--python", default=sys.executable, help="the servers' interpreter")
    parser.add_argument("--config", help="a JSON file: init configuration by server")
    parser.add_argument("--count", type=int, default=200, help="sessions a measurement")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--open", type=int, nargs="*", default=[], help="sessions open together, for their memory")
    parser.add_argument("--soak", type=int, default=0, help="sessions of the soak")
    parser.add_argument("--search", default="off", help="a knowledge search for the servers: auto, a URL, a binary")
    arguments = parser.parse_args()
    if arguments.servers:
        specs = load_servers(arguments.servers, python=arguments.python)
        config = json.loads(Path(arguments.config).read_text()) if arguments.config else {next(iter(specs)): {}}
    else:
        specs = {"bookings": ServerSpec(name="bookings", command=(sys.executable, os.fspath(OURS)))}
        config = {"bookings": {"bookings": {str(room): "guest" for room in range(100)}}}

    async def run() -> None:
        async with open_search(arguments.search):
            if arguments.open:
                await memory(specs, config, arguments.open)
            elif arguments.soak:
                await soak(specs, config, arguments.soak, arguments.concurrency)
            else:
                await compare(specs, config, arguments.count, arguments.concurrency)

    trio.run(run)


if __name__ == "__main__":
    main()
