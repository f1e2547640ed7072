"""The public Session Proxy and ours, side by side: what a session costs, and what ``tb infer`` makes of either.

    ENDSTATE_THINKINGBOX=… ENDSTATE_THINKINGBOX_DATA=… ENDSTATE_THINKINGBOX_PYTHON=… \\
        bin/_python engine benchmarks/proxy.py [--infer ROUNDS] [--sessions N] [--concurrency 1,4,16] [--no-knowledge]

The variables name checkouts of the public repositories and the Python that has them installed. There are three
contenders: the public proxy, ours, and ours with --reuse. They run at once and are used in turns, so that what else the
machine does meets all; an idle one costs nothing. CPU is that of a proxy's process and everything below it; the
client's is apart, and so is the embedded knowledge search, which runs here for all of them.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import http.client
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from process_cpu import tree_cpu
from scripted_agent import Call, scripted_agent

from protocol.server import free_port
from rollout_engine.environments.thinkingbox.dataset import Case, load_dataset

ROOT = Path(__file__).resolve().parents[1]
TASKS = "releases/dataset_2604_airline_tau_bench/testlist_2604_airline_tau_bench.yaml"
BENCH = "releases/thinkingbox_bench_v1/testlist_thinkingbox_bench_v1.yaml"
UUID = "-".join(f"[0-9a-f]{{{length}}}" for length in (8, 4, 4, 4, 12))
UNSTABLE = re.compile(rf'{UUID}|(?:CERT|certificate_)[0-9A-F]{{8}}|"(execution_time|time_\w+)": [\d.e-]+')
"""Session ids, the numbers of new certificates, which the server draws, and durations."""


@dataclass(frozen=True)
class Peer:
    framework: Path
    data: Path
    python: Path

    @classmethod
    def from_environment(cls) -> Peer:
        try:
            framework, data = (Path(os.environ[f"ENDSTATE_THINKINGBOX{name}"]) for name in ("", "_DATA"))
        except KeyError as error:
            sys.exit(f"set {error}: this benchmark runs against checkouts of the public repositories")
        return cls(framework, data, Path(os.environ.get("ENDSTATE_THINKINGBOX_PYTHON", sys.executable)))

    @property
    def tb(self) -> Path:
        return self.python.parent / "tb"

    @property
    def servers(self) -> Path:
        return self.data / "servers/servers.yaml"

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {"THINKINGBOX_DATA": str(self.data)}


@dataclass(frozen=True)
class Proxy:
    name: str
    port: int
    pid: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cpu(self) -> float:
        return tree_cpu(self.pid)


@contextmanager
def proxy(name: str, peer: Peer, command: list[str | Path]) -> Iterator[Proxy]:
    port = free_port()
    command = [*map(str, command), "--servers", str(peer.servers), "--port", str(port)]
    with tempfile.TemporaryFile() as log:
        with subprocess.Popen(command, env=peer.environment, stdout=log, stderr=log, cwd=ROOT) as process:
            try:
                _until_well(port, process, log)
                yield Proxy(name, port, process.pid)
            finally:
                process.terminate()


def _until_well(port: int, process: subprocess.Popen, log: Any) -> None:
    for _ in range(600):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().read() == b"OK":
                return
        except OSError:
            pass
        if process.poll() is not None:
            break
        time.sleep(0.1)
    log.seek(0)
    sys.exit(f"a proxy did not start: {log.read().decode(errors='replace')[-2000:]}")


@contextmanager
def contenders(peer: Peer) -> Iterator[list[Proxy]]:
    ours = [ROOT / "bin/_python", "engine", "-m", "rollout_engine.cli.sessions", "serve", "--python", peer.python]
    with ExitStack() as stack:
        enter = stack.enter_context
        yield [
            enter(proxy("public", peer, [peer.tb, "mcp-start"])),
            enter(proxy("ours", peer, ours)),
            enter(proxy("ours --reuse", peer, [*ours, "--reuse", "32"])),
        ]


@contextmanager
def knowledge_search() -> Iterator[None]:
    """The stand-in in a process of its own, so that it is on nobody's account."""
    code = "import trio; from rollout_engine.sessions.search.service import open_search\n"
    code += "async def main():\n async with open_search() as search:\n  print(search.note, flush=True)\n"
    code += "  await trio.sleep_forever()\ntrio.run(main)"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        print(f"knowledge search: {process.stdout.readline().strip()}", flush=True)
        try:
            yield
        finally:
            process.terminate()


def post(proxy: Proxy, path: str, **body: Any) -> Any:
    """Over a connection of its own, as the public client does it."""
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=300)
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    reply = json.loads(connection.getresponse().read())
    connection.close()
    if not reply["success"]:
        sys.exit(f"{proxy.name}: {path}: {reply['content']['value']}")
    return reply["content"]["value"]


def measure_sessions(proxies: list[Proxy], cases: list[Case], count: int, at_once: int, knowledge: bool) -> None:
    """Sessions created and destroyed, in turns of a batch for each proxy."""
    worlds = [(_world(case, knowledge), [tool.name for tool in case.scenario.tools]) for case in cases]
    numbers = itertools.count()

    def one(proxy: Proxy) -> None:
        number = next(numbers)
        world, tools = worlds[number % len(worlds)]
        name = f"b{at_once}-{number}"
        post(proxy, "/session_create", session_id=name, server_config=world, available_tools=tools)
        post(proxy, "/session_destroy", session_id=name)

    wall = dict.fromkeys(proxies, 0.0)
    cpu = dict.fromkeys(proxies, 0.0)
    done = dict.fromkeys(proxies, 0)
    batch = max(len(worlds), at_once)
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        for proxy in proxies:
            for _ in worlds:
                one(proxy)
        while min(done.values()) < count:
            for proxy in proxies:
                # Ours are so much cheaper that as many would be too few for the clock's ticks.
                sessions = batch if proxy.name == "public" else 5 * batch
                before, began = proxy.cpu(), time.perf_counter()
                list(pool.map(one, [proxy] * sessions))
                wall[proxy] += time.perf_counter() - began
                cpu[proxy] += proxy.cpu() - before
                done[proxy] += sessions
    base = cpu[proxies[0]] / done[proxies[0]]
    for proxy in proxies:
        each = cpu[proxy] / done[proxy]
        print(
            f"{at_once:>3} at once  {proxy.name:<13} {done[proxy]:>5} sessions  {done[proxy] / wall[proxy]:7.2f}/s  "
            f"{1000 * each:8.1f} CPU ms each  {base / each:6.1f}x",
            flush=True,
        )


def _world(case: Case, knowledge: bool) -> dict[str, Any]:
    if knowledge:
        return case.world
    return {server: {**config, "sources": []} for server, config in case.world.items()}


def measure_infer(proxies: list[Proxy], peer: Peer, rounds: int, tasks: int, batch: int, agent: bool) -> None:
    """``tb infer`` over the 21 airline tasks, in turns; and whether it came to the same results."""
    users = json.loads((peer.data / "support/tau_bench/airline_data/users.json").read_text())
    names = sorted(name for name, user in users.items() if user["reservations"])

    def script(query: str) -> list[Call]:
        user = names[zlib.crc32(query.encode()) % len(names)]
        reservation = users[user]["reservations"][0]
        return [
            ("get_user_details", {"user_id": user}),
            ("get_reservation_details", {"reservation_id": reservation}),
            ("list_all_airports", {}),
            ("search_direct_flight", {"origin": "JFK", "destination": "SEA", "date": "2024-05-20"}),
            ("calculate", {"expression": "2 * 71 + 3"}),
            ("get_reservation_details", {"reservation_id": "NOSUCH"}),
            ("send_certificate", {"user_id": user, "reason": "other", "reservation_id": reservation, "amount": 50}),
        ]

    selectors = yaml.safe_load((peer.data / TASKS).read_text())[:tasks]
    world = load_dataset(peer.data / "dataset").hydrate(selectors[:1], agent="think")[0].world
    for proxy in proxies:
        # So that no contender pays for the first start of a server in what is measured.
        post(proxy, "/session_create", session_id="first", server_config=world, available_tools=[])
        post(proxy, "/session_destroy", session_id="first")
    wall = dict.fromkeys(proxies, 0.0)
    cpu = dict.fromkeys(proxies, 0.0)
    client = dict.fromkeys(proxies, 0.0)
    rows: dict[Proxy, list[dict[str, Any]]] = {}
    with scripted_agent(script) as url, tempfile.TemporaryDirectory() as folder:
        Path(folder, "tasks.yaml").write_text(yaml.safe_dump(selectors))
        for round_ in range(rounds):
            for proxy in proxies if round_ % 2 == 0 else proxies[::-1]:
                output = Path(folder, f"{proxy.port}.jsonl")
                command = _infer(peer, proxy, url, Path(folder), output, batch, agent)
                before, began = proxy.cpu(), time.perf_counter()
                process = subprocess.Popen(
                    command, env=peer.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
                )
                told = process.stderr.read()
                _, status, usage = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
                if process.returncode:
                    sys.exit(f"tb infer against {proxy.name} failed: {told.decode()[-2000:]}")
                wall[proxy] += time.perf_counter() - began
                cpu[proxy] += proxy.cpu() - before
                client[proxy] += usage.ru_utime + usage.ru_stime
                found = [stable(line) for line in output.read_text().splitlines()]
                compare(rows.setdefault(proxies[0], found), found, proxy.name)
    what = "tb infer" if agent else "tb infer --skip-agent"
    base = proxies[0]
    for proxy in proxies:
        tasks = rounds * len(rows[base])
        print(
            f"{what:<22} {proxy.name:<13} {tasks:>4} tasks  {wall[proxy] / tasks:6.2f} s each  proxy CPU "
            f"{cpu[proxy] / tasks * 1000:7.0f} ms  client CPU {client[proxy] / tasks * 1000:6.0f} ms  "
            f"wall {wall[base] / wall[proxy]:5.2f}x  proxy CPU {cpu[base] / cpu[proxy]:6.1f}x",
            flush=True,
        )
    passed = sum(bool(row["test_result"]["result"]) for row in rows[base])
    errors = sum(row["is_system_error"] for row in rows[base])
    print(f"the same {len(rows[base])} rows from each, {passed} passed, {errors} system errors", flush=True)


def _run(command: list[str], peer: Peer) -> float:
    """Seconds of CPU that a command and its children took."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, env=peer.environment, stdout=subprocess.DEVNULL, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            log.seek(0)
            sys.exit(f"{command[1]} failed: {log.read().decode(errors='replace')[-2000:]}")
    return usage.ru_utime + usage.ru_stime


def _infer(peer: Peer, proxy: Proxy, url: str, folder: Path, output: Path, batch: int, agent: bool) -> list[str]:
    model = {"type": "aoai", "deployment": "scripted", "endpoint_url": url}
    config = {
        "mcp_proxy": {"endpoint_url": proxy.url, "timeout": 300.0},
        "orchestrator": {"type": "thinkingbox", "agent_model": model},
        "judge_model": model,
    }
    file = folder / f"{proxy.port}.yaml"
    file.write_text(yaml.safe_dump(config))
    options = {
        "-c": file,
        "-d": peer.data / "dataset",
        "-a": "think",
        "--test-list": folder / "tasks.yaml",
        "-b": batch,
    }
    options |= {"-o": output, "--dump": "tools,testcontext"}
    command = [
        str(peer.tb),
        "infer",
        *itertools.chain.from_iterable((name, str(value)) for name, value in options.items()),
    ]
    return command if agent else [*command, "--skip-agent"]


def stable(line: str) -> dict[str, Any]:
    """A result without what differs from run to run of one and the same proxy."""
    plain = json.dumps(json.loads(line))
    return json.loads(UNSTABLE.sub(lambda match: f'"{match[1]}": 0' if match[1] else "ID", plain))


def compare(base: list[dict[str, Any]], rows: list[dict[str, Any]], name: str) -> None:
    """Row by row and key by key: verdicts, messages, tools, effects."""
    if [row["uid"] for row in base] != [row["uid"] for row in rows]:
        sys.exit(f"{name}: other rows than the public proxy")
    for one, other in zip(base, rows, strict=True):
        found = difference(one, other)
        if found:
            sys.exit(f"{name}: {one['uid']} differs from the public proxy's: {found}")


def difference(one: Any, other: Any, path: str = "") -> str:
    """Where two values differ first, and how; empty where they don't."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return next(filter(None, (difference(one[key], other[key], f"{path}.{key}") for key in one)), "")
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return next(filter(None, (difference(a, b, f"{path}[{index}]") for index, (a, b) in pairs)), "")
    return "" if one == other else f"{path}: {str(one)[:500]!r} and {str(other)[:500]!r}"


def bench_cases(peer: Peer) -> list[Case]:
    """The first case of each benchmark domain."""
    dataset = load_dataset(peer.data / "dataset")
    first: dict[str, Case] = {}
    for uid in yaml.safe_load((peer.data / BENCH).read_text()):
        domain = uid.split(".py")[0].rpartition("_group")[0]
        if domain not in first:
            first[domain] = dataset.hydrate([uid], agent="think")[0]
    return list(first.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--infer", type=int, default=2, help="rounds of tb infer; 0: none")
    parser.add_argument("--tasks", type=int, default=21, help="of the 21 airline tasks")
    parser.add_argument("--batch", type=int, default=5, help="tb infer's -b")
    parser.add_argument("--sessions", type=int, default=40, help="sessions of the public proxy a concurrency; 0: none")
    parser.add_argument("--concurrency", default="1,4,16")
    parser.add_argument("--no-knowledge", action="store_true", help="leave out the knowledge base of each session")
    arguments = parser.parse_args()
    peer = Peer.from_environment()
    cases = bench_cases(peer) if arguments.sessions else []
    with knowledge_search(), contenders(peer) as proxies:
        for at_once in map(int, arguments.concurrency.split(",") if arguments.sessions else []):
            measure_sessions(proxies, cases, arguments.sessions, at_once, not arguments.no_knowledge)
        if arguments.infer:
            measure_infer(proxies, peer, arguments.infer, arguments.tasks, arguments.batch, agent=True)
            measure_infer(proxies, peer, arguments.infer, arguments.tasks, arguments.batch, agent=False)


if __name__ == "__main__":
    main()
