"""Small servers of our own, and what to count so that nothing leaks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from rollout_engine.sessions import HostLimits, ServerSpec

SERVERS = Path(__file__).parent / "servers"


@pytest.fixture(scope="session")
def server() -> Callable[..., ServerSpec]:
    """``server("plain", "thread", name="p", mode="spawn")``: a specification of one of our servers."""

    def make(file: str, *args: str, name: str = "", mode: str = "auto") -> ServerSpec:
        command = (sys.executable, str(SERVERS / f"{file}.py"), *args)
        return ServerSpec(name=name or file, command=command, mode=mode)

    return make


@pytest.fixture
def limits() -> HostLimits:
    """Bounds that a test can wait for, on a busy machine too."""
    return HostLimits(start_timeout=30.0, call_timeout=20.0, result_bytes=1 << 20)


@contextmanager
def nothing_left() -> Iterator[None]:
    """Everything that the block opened and started is gone when it ends."""
    before = set(os.listdir("/proc/self/fd"))
    running = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in running]
    assert left == []
    assert len(os.listdir("/proc/self/fd")) <= len(before)


@pytest.fixture
def clean() -> Iterator[None]:
    with nothing_left():
        yield
