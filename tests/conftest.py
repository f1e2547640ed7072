"""Fixtures shared by every test: a real NATS server, and runs of their own on it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from xdist.scheduler import LoadFileScheduling

from protocol.config import Nats
from protocol.records import Message, TokenArrays, ToolCall, Trajectory, TrajectoryId, Verdict
from protocol.server import NatsServer, free_port

_SHARED = {"test_chaos": "barely_warm", "test_loop": "barely_warm"}
"""Modules that share what takes minutes to make."""


class ByModule(LoadFileScheduling):
    """With several workers (``-n 2``) a module stays on one of them, and so do modules that share a fixture."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return _SHARED.get(Path(file).stem, file)


def pytest_xdist_make_scheduler(config: pytest.Config, log) -> ByModule:
    return ByModule(config, log)


@pytest.fixture(scope="session")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of one real NATS server with JetStream, shared by the whole session: use a run of your own on it."""
    with NatsServer(tmp_path_factory.mktemp("nats"), f"nats://127.0.0.1:{free_port()}") as server:
        yield server.url


@pytest.fixture(scope="session")
def nats_config(nats_url: str) -> Nats:
    return Nats(url=nats_url)


@pytest.fixture
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., NatsServer]]:
    """Factory of servers to kill: ``nats_server(restart=False, max_payload=…)``, started, on a port of its own."""
    servers: list[NatsServer] = []

    def start(**settings) -> NatsServer:
        server = NatsServer(tmp_path_factory.mktemp("nats"), f"nats://127.0.0.1:{free_port()}", **settings)
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.stop()


_runs = itertools.count()


@pytest.fixture
def run() -> str:
    """A run id that no other test of this session uses."""
    return f"test-{next(_runs)}"


@pytest.fixture(scope="session")
def make_trajectory() -> Callable[..., Trajectory]:
    """Factory: ``make_trajectory(run, step, group, sample, tokens=…, **fields)``, of any token count."""

    def make(run: str, step: int = 0, group: int = 0, sample: int = 0, tokens: int = 20, **fields) -> Trajectory:
        sampled = tokens // 2
        values = {
            "id": TrajectoryId(run, step, group, sample),
            "task": "travel/refund/train/3",
            "domain": "travel",
            "family": "refund",
            "policy_version": step,
            "messages": (
                Message("user", "Grüezi, refund my booking"),
                Message("assistant", "", reasoning="look it up", calls=(ToolCall("find", {"booking": "B7"}),)),
                Message("tool", '{"status": "paid"}', name="find"),
            ),
            "verdict": Verdict(0.0, ("payments: wrong amount",)),
            "finish": "done",
            "tokens": TokenArrays.pack(
                range(tokens),
                [0] * (tokens - sampled) + [1] * sampled,
                [-0.5 * (sample + 1)] * sampled,
                [step] * sampled,
            ),
            "sampled_tokens": sampled,
        }
        return Trajectory(**(values | fields))

    return make
