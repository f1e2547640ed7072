"""CPU time of a process and everything below it, read from /proc: living processes and those they have waited for."""

from __future__ import annotations

import os
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def tree_cpu(pid: int) -> float:
    """Seconds of user and system time."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
            # utime, stime, cutime, cstime: fields 14 to 17 of the whole line.
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    total, waiting = 0, [pid]
    while waiting:
        one = waiting.pop()
        total += ticks.get(one, 0)
        waiting += children.get(one, [])
    return total / TICKS
