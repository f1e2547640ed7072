"""The verbs of a run, each started again as often as it is killed.

Invariant: a verb that a signal ended is started again at once, as an operator's supervisor would; one that ends with
an error of its own is a violation, with the end of its log. Nothing outlives :meth:`Verb.keep_running`, nor us.
"""

from __future__ import annotations

import ctypes
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import trio

ROOT = Path(__file__).resolve().parents[2]
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


class Died(Exception):
    """A verb ended with an error of its own."""


@dataclass
class Verb:
    name: str
    arguments: Sequence[str]
    log: Path
    starts: int = 0
    ended: trio.Event = field(default_factory=trio.Event)
    """Set when the verb has ended by itself with exit code 0."""
    process: subprocess.Popen | None = None

    async def keep_running(self) -> None:
        """Run the verb to its end; raises :class:`Died`."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        try:
            while True:
                self.starts += 1
                with self.log.open("ab") as log:
                    self.process = subprocess.Popen(
                        [str(ROOT / "bin" / self.name), *self.arguments],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                        preexec_fn=_die_with_parent,
                    )
                while (code := self.process.poll()) is None:
                    await trio.sleep(0.05)
                if code == 0:
                    self.ended.set()
                    return
                if code != -signal.SIGKILL:
                    raise Died(f"bin/{self.name} ended with exit code {code}:\n{self.tail()}")
        finally:
            self._stop()

    def _stop(self) -> None:
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def tail(self, lines: int = 20) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def processes_of(*words: str) -> list[psutil.Process]:
    """Every process with all of ``words`` in its command line."""
    found = []
    for process in psutil.process_iter():
        try:
            line = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if all(word in line for word in words):
            found.append(process)
    return found
