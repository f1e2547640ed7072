"""Writing to a disk that may be full.

Invariant: a write that finds no room is made again until there is, for a bounded time in which it says what it waits
for. Nothing that was on the disk is given up for it, and whoever waits for the write waits too: no batch is
acknowledged, no version announced (rule 13).
"""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from learner.errors import DiskFull

T = TypeVar("T")

_LONGEST_PAUSE = 5.0


def with_room(
    what: str, folder: Path, needed: int, wait: float, console: Console, write: Callable[[], T], again: bool = True
) -> T:
    """``write()``, again and again while the disk of ``folder`` is full, for at most ``wait`` seconds.

    It isn't tried where fewer than the ``needed`` bytes are free, and removes what it leaves when it fails. ``again``
    False: it is tried once. Raises :class:`~learner.errors.DiskFull` at the bound.
    """
    deadline, pause = time.monotonic() + wait, 0.5
    waited = tried = False
    while True:
        try:
            free = shutil.disk_usage(folder).free
            if free < needed:
                raise OSError(errno.ENOSPC, f"{needed} bytes are needed and {free} free")
            tried = True
            value = write()
        except Exception as error:  # Orbax and TensorStore wrap the system's error in others
            if not is_full(error):
                raise
            free = shutil.disk_usage(folder).free / 2**20
            where = f"no room for {what} in {folder} ({needed / 2**20:,.0f} MiB are needed, {free:,.0f} MiB free)"
            if time.monotonic() >= deadline or (tried and not again):
                raise DiskFull(
                    f"{where}, for {wait:g} s (learner.disk_wait): make room there, then run the same command again; "
                    "it goes on from the last checkpoint and loses nothing"
                ) from error
            if not waited:
                console.print(f"[yellow]{where}[/]: make room; waiting up to {wait:g} s", highlight=False)
                waited = True
            time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(2 * pause, _LONGEST_PAUSE)
        else:
            if waited:
                console.print(f"there is room: {what} written", highlight=False)
            return value


def is_full(error: BaseException) -> bool:
    """Whether a write failed because the disk, or the user's share of it, is full."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return "No space left on device" in str(error) or "Disk quota exceeded" in str(error)
