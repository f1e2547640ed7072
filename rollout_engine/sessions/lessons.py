"""What is learned from sessions that ended, for those to come: their memory, and modules that they imported late.

Invariant: looking costs next to nothing: it happens after 1, 2, 4, 8, ... sessions.

Servers import much only when a tool is first called (an HTTP client, a validator), which every forked session would do
again. Libraries among it are imported into the process that sessions are copied from.
"""

from __future__ import annotations

from pathlib import Path

HEADROOM = 1.1


class Lessons:
    """``bytes``: what to count for a session; the configured figure until one was measured."""

    def __init__(self, default_bytes: int):
        self.bytes = default_bytes
        self._default = default_bytes
        self._ended = 0
        self._known: set[str] = set()
        self._learning = True

    def due(self) -> bool:
        """Whether to look at the session that is ending now."""
        self._ended += 1
        return self._ended & (self._ended - 1) == 0

    def took(self, pid: int) -> None:
        """Note the memory that a process has for itself. The largest so far counts."""
        measured = int(private_bytes(pid) * HEADROOM)
        self.bytes = max(measured, self.bytes if self._ended > 1 else 0) or self._default

    def new(self, modules: list[str]) -> list[str]:
        """Of modules that a session imported: those to import beforehand from now on."""
        fresh = [name for name in modules if name not in self._known] if self._learning else []
        self._known.update(fresh)
        return fresh

    def forget(self) -> None:
        """Importing beforehand did harm: no more of it."""
        self._learning = False


def private_bytes(pid: int) -> int:
    """Memory of a process that it shares with no other, in bytes; 0 where the system doesn't say."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))
