"""Learners of several processes on this machine, for a test and for a demonstration."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import yaml
from tiny import make_config, make_model, write_log

from protocol.config import Config

ROOT = Path(__file__).parents[2]


def prepare(folder: Path, steps: int, **learner) -> Config:
    """A run of ``steps`` updates over a hand-made log, in ``folder``."""
    config = make_config(folder, steps=steps, keep_weights=steps + 1, **learner)
    make_model(config.path / "base")
    (folder / "config.yaml").write_text(yaml.safe_dump(msgspec.to_builtins(config)))
    write_log(folder / "log.jsonl", steps)
    return config


def start(folder: Path, processes: int, devices: int, module: str = "learner.main") -> list[subprocess.Popen]:
    """The learner of the run in ``folder``, as so many processes with so many virtual devices each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    environment = os.environ | {
        # Compiled in a hurry, as this process's own programs are.
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices} "
        "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", module, "--config", folder / "config.yaml", "--replay", folder / "log.jsonl"]
    place = ["--coordinator", coordinator, "--processes", str(processes)]
    return [
        subprocess.Popen(
            [*command, *(place if processes > 1 else ()), *(("--process", str(i)) if processes > 1 else ())],
            env=environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for i in range(processes)
    ]


def finish(processes: list[subprocess.Popen], timeout: float = 240) -> list[tuple[int, str]]:
    """(exit code, what it printed since it was last read) of each."""
    printed = [process.communicate(timeout=timeout)[0] for process in processes]
    return [(process.returncode, text) for process, text in zip(processes, printed, strict=True)]


def metrics(config: Config) -> list[dict]:
    return [json.loads(line) for line in (config.path / "metrics.jsonl").read_text().splitlines()]
