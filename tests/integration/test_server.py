"""The supervised NATS server: kept alive, shared, taken over, and gone when its owner leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from protocol.server import NatsServer, ServerError, find_binary, free_port

pytestmark = pytest.mark.nats

ROOT = Path(__file__).parents[2]


def _alive(pid: int) -> bool:
    """Whether a process runs; a zombie doesn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _until(condition, seconds: float = 15.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def _url() -> str:
    return f"nats://127.0.0.1:{free_port()}"


@pytest.fixture
def spawn() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts this Python with the given arguments; ends it with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments) -> subprocess.Popen[str]:
        command = [sys.executable, *map(str, arguments)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT))
        return started[-1]

    yield start
    for process in started:
        process.terminate()
        process.wait(15)
        process.stdout.close()


def test_it_ends_with_its_owner(tmp_path):
    with NatsServer(tmp_path, _url()) as server:
        assert server.owned
        pid = server.pid
        assert _alive(pid)
    assert not _alive(pid)
    assert (tmp_path / "jetstream").is_dir()


def test_a_killed_server_is_started_again(tmp_path):
    with NatsServer(tmp_path, _url()) as server:
        first = server.pid
        server.kill()
        assert _until(lambda: server.restarts == 1)
        assert server.pid != first
        assert server.failure is None


def test_a_folder_that_someone_serves_is_shared(tmp_path):
    url = _url()
    with NatsServer(tmp_path, url) as owner:
        with NatsServer(tmp_path, url) as guest:
            assert not guest.owned
        assert _alive(owner.pid), "a guest doesn't end its host's server"


def test_an_orphan_is_taken_over(tmp_path, spawn):
    """Its owner was killed, so nobody would ever end it."""
    url = _url()
    code = (
        "import sys, time; from protocol.server import NatsServer; server = NatsServer(sys.argv[1], sys.argv[2]);"
        "server.start(); print(server.pid, flush=True); time.sleep(60)"
    )
    owner = spawn("-c", code, tmp_path, url)
    orphan = int(owner.stdout.readline())
    owner.kill()
    owner.wait()
    assert _alive(orphan)
    with NatsServer(tmp_path, url) as server:
        assert server.owned
        assert server.pid != orphan
        assert not _alive(orphan)


def test_a_port_that_another_server_holds(tmp_path):
    url = _url()
    with NatsServer(tmp_path / "one", url):
        with pytest.raises(ServerError, match=r"(?s)ended at once.*address already in use"):
            NatsServer(tmp_path / "other", url).start()


def test_a_server_that_can_not_come_back_is_given_up(tmp_path, monkeypatch):
    with NatsServer(tmp_path, _url()) as server:
        monkeypatch.setattr(server, "_configuration", lambda: "no such setting: true\n")
        server.kill()
        assert _until(lambda: server.failure is not None)
        assert "ended at once" in str(server.failure)


def test_the_binary_is_found_beside_this_python():
    assert os.access(find_binary(), os.X_OK)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_verb_serves_until_it_is_told_to_stop(tmp_path, spawn, number):
    url = _url()
    verb = spawn("-m", "protocol.cli.nats", "--folder", tmp_path, "--url", url)
    assert verb.stdout.readline().startswith(f"NATS at {url}")
    pid = int((tmp_path / "nats.pid").read_text())
    os.kill(pid, signal.SIGKILL)
    assert "started again" in verb.stdout.readline()
    pid = int((tmp_path / "nats.pid").read_text())
    verb.send_signal(number)
    assert verb.wait(15) == 0
    assert not _alive(pid)


def test_the_verb_needs_to_know_where(tmp_path):
    done = subprocess.run([sys.executable, "-m", "protocol.cli.nats"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert "--config FILE or --folder FOLDER" in done.stderr
