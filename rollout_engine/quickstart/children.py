"""Child processes of the main job: supervised, logged, and never left behind.

Invariants: a child in the background has its own session, so Ctrl-C reaches it only through us. Every child
gets SIGTERM when we end, SIGKILL when it dawdles, and the kernel tells it when we are killed. A child that a
signal ended and that we did not stop is started again a bounded number of times, visibly; one that exits with an
error of its own is not.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio
from rich.console import Console

ROOT = Path(__file__).resolve().parents[2]
RESTARTS = 5
GRACE = 20.0
"""Seconds between SIGTERM and SIGKILL."""

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


class ChildFailed(Exception):
    """A child process ended with an error; the message holds the end of its log."""


@dataclass
class Child:
    """One verb, running in the background with its output in ``log``."""

    verb: str
    arguments: Sequence[str]
    log: Path
    console: Console
    process: subprocess.Popen | None = None
    finished: trio.Event = field(default_factory=trio.Event)
    """Set when the verb has ended by itself with exit code 0."""

    async def supervise(self) -> None:
        """Run the verb to its end; raises :class:`ChildFailed`."""
        for attempt in range(RESTARTS + 1):
            code = await self._run_once()
            if code == 0:
                self.finished.set()
                return
            if code > 0 and code != 128 + signal.SIGKILL:
                raise ChildFailed(f"bin/{self.verb} ended with exit code {code}:\n{tail(self.log)}")
            if attempt < RESTARTS:
                self.console.print(f"[yellow]bin/{self.verb} was killed (signal {-code}); starting it again[/]")
        raise ChildFailed(f"bin/{self.verb} was killed {RESTARTS + 1} times:\n{tail(self.log)}")

    async def _run_once(self) -> int:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.process = _start(
                self.verb,
                self.arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return await _ended(self.process)


@asynccontextmanager
async def background(child: Child) -> AsyncIterator[Child]:
    """Run ``child`` while the body runs; its failure ends the body, and the end of the body stops it."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(child.supervise)
        yield child
        nursery.cancel_scope.cancel()


async def foreground(console: Console, verb: str, *arguments: str) -> None:
    """Run a verb in our terminal to its end; raises :class:`ChildFailed` unless it exits with 0."""
    for attempt in range(RESTARTS + 1):
        code = await _ended(_start(verb, arguments))
        if code == 0:
            return
        if code > 0:
            raise ChildFailed(f"bin/{verb} ended with exit code {code}; its message is above")
        if attempt < RESTARTS:
            console.print(f"[yellow]bin/{verb} was killed (signal {-code}); starting it again[/]")
    raise ChildFailed(f"bin/{verb} was killed {RESTARTS + 1} times")


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log file."""
    text = log.read_text(errors="replace").splitlines()[-lines:] if log.exists() else []
    return "\n".join(["  | " + line for line in text] + [f"  (whole log: {log})"])


def _start(verb: str, arguments: Sequence[str], **options) -> subprocess.Popen:
    # From this thread: the kernel counts the end of the thread that started a child as the end of its parent.
    # Where there is no such promise of the kernel's, an orderly end still takes the children along.
    before = _die_with_parent if sys.platform.startswith("linux") else None
    return subprocess.Popen([str(ROOT / "bin" / verb), *arguments], preexec_fn=before, **options)


async def _ended(process: subprocess.Popen) -> int:
    """The exit code, once the process has ended; when cancelled, end it."""
    try:
        return await _wait(process)
    finally:
        with trio.CancelScope(shield=True):
            await _stop(process)


async def _wait(process: subprocess.Popen) -> int:
    # Popen.wait in a thread can't be cancelled; polling a child costs nothing at this pace.
    while (code := process.poll()) is None:
        await trio.sleep(0.1)
    return code


async def _stop(process: subprocess.Popen) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with trio.move_on_after(GRACE):
            await _wait(process)
    # The group may outlive its leader; nothing of it may outlive us.
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
