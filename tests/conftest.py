"""Fixtures shared by every test: a real NATS server, and runs of their own on it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from protocol.config import Nats
from protocol.server import NatsServer, free_port


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
