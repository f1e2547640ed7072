"""Starting and ending server processes, with small stand-ins for vLLM."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from protocol.config import Config, resolve
from protocol.server import free_port
from rollout_engine.actors.serve import prepare_cpu
from rollout_engine.actors.server import ROOT, ServerFailed, ServerKilled, VllmServer, flags
from rollout_engine.errors import ConfigurationError


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def stand_in(tmp_path: Path, program: str) -> str:
    """An executable that runs ``program`` in place of Python running vLLM."""
    source = tmp_path / "stand_in.py"
    source.write_text(textwrap.dedent(program))
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} {source} "$@"\n')
    script.chmod(0o755)
    return str(script)


def config(**actor) -> Config:
    return resolve({"run": "r", "actor": {"port": free_port(), "start_timeout": 20.0, **actor}})


def test_later_flags_are_the_users(model: Path) -> None:
    line = flags(config(dtype="float32", extra_args=["--block-size=64"]), model)
    assert "--dtype=float32" in line and "--logprobs-mode=processed_logprobs" in line
    assert line[-1] == "--block-size=64"


def test_cpu_settings_give_way_to_the_users_environment() -> None:
    environment = {"OMP_NUM_THREADS": "7"}
    added = prepare_cpu(environment, ["--max-model-len=5000"])
    assert {"--enforce-eager", "--max-num-batched-tokens=5000"} <= set(added)
    assert environment["OMP_NUM_THREADS"] == "7"
    assert environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"


def test_server_that_exits_while_starting_shows_the_end_of_its_log(tmp_path: Path, model: Path) -> None:
    python = stand_in(tmp_path, "print('CUDA error: no such thing'); raise SystemExit(3)")
    server = VllmServer(config(), tmp_path / "vllm.log", python)
    with pytest.raises(ServerFailed, match=r"(?s)exit code 3 .*CUDA error: no such thing.*vllm.log"):
        asyncio.run(server.start(model))


def test_server_that_never_answers_is_ended_at_the_bound_with_its_children(tmp_path: Path, model: Path) -> None:
    python = stand_in(
        tmp_path,
        """
        import signal, subprocess, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print("child", child.pid, flush=True)
        time.sleep(600)
        """,
    )
    server = VllmServer(config(start_timeout=1.5), tmp_path / "vllm.log", python)
    with pytest.raises(ServerFailed, match="not healthy within actor.start_timeout = 1.5 s"):
        asyncio.run(server.start(model))
    child = int((tmp_path / "vllm.log").read_text().split()[1])
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_server_that_is_killed_while_starting_is_told_apart(tmp_path: Path, model: Path) -> None:
    python = stand_in(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    server = VllmServer(config(), tmp_path / "vllm.log", python)
    with pytest.raises(ServerKilled, match="was killed \\(signal 9\\) while starting"):
        asyncio.run(server.start(model))


def test_port_that_a_dying_server_still_holds_is_waited_for(tmp_path: Path, model: Path) -> None:
    async def script() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            server = VllmServer(config(port=taken.getsockname()[1]), tmp_path / "log", stand_in(tmp_path, "exit(3)"))
            asyncio.get_running_loop().call_later(0.3, taken.close)
            with pytest.raises(ServerFailed, match="exit code 3"):
                await server.start(model)

    asyncio.run(script())


def test_port_in_use_is_refused_before_anything_starts(tmp_path: Path, model: Path, monkeypatch) -> None:
    monkeypatch.setattr("rollout_engine.actors.server._LETS_GO", 0.2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = VllmServer(config(port=taken.getsockname()[1]), tmp_path / "log", "/no/python")
        with pytest.raises(ConfigurationError, match="--set actor.port=N.*--url http://127.0.0.1"):
            asyncio.run(server.start(model))


@pytest.mark.parametrize(("missing", "fault"), [("config.json", "no config.json"), ("model.safetensors", "no .*safe")])
def test_folder_that_is_no_model_is_refused(tmp_path: Path, model: Path, missing: str, fault: str) -> None:
    (model / missing).unlink()
    with pytest.raises(ConfigurationError, match=fault):
        asyncio.run(VllmServer(config(), tmp_path / "log", "/no/python").start(model))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="PR_SET_PDEATHSIG is Linux's")
def test_a_process_on_the_lifeline_dies_with_its_killed_parent() -> None:
    child = (
        "import os, time; from rollout_engine.actors.lifeline import die_with_parent; die_with_parent(os.getppid());"
    )
    child += "print(os.getpid(), flush=True); time.sleep(600)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = subprocess.Popen([sys.executable, "-c", parent], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    grandchild = psutil.Process(int(process.stdout.readline()))
    process.kill()
    process.wait()
    grandchild.wait(timeout=20)
