"""The bounds of a session host. Every wait and every resource of it has one here."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass, field

MEBIBYTE = 1 << 20
DESCRIPTORS_BESIDE = 256
DESCRIPTORS_A_SESSION = 4


def available_memory() -> int:
    """Bytes of memory that can be had without swapping, or 8 GiB where the system doesn't say."""
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 8 << 30


def raise_descriptor_limit(sessions: int) -> None:
    """Let this process have the descriptors of so many sessions, as far as the system allows.

    A session holds two for each of its servers. Beyond the system's limit opening raises HostFull.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = DESCRIPTORS_BESIDE + DESCRIPTORS_A_SESSION * sessions
    if soft != resource.RLIM_INFINITY and soft < needed:
        allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


@dataclass(frozen=True, kw_only=True)
class HostLimits:
    """Times in seconds, sizes in bytes."""

    runnable: int = field(default_factory=lambda: 3 * len(os.sched_getaffinity(0)))
    """Sessions that may be in a call or in opening at once: more only compete for the cores."""
    open: int = 1024
    """Open sessions and templates. Further ones wait in order."""
    memory_bytes: int = field(default_factory=lambda: available_memory() * 4 // 5)
    """What open sessions may take together, by ``fork_bytes`` and ``spawn_bytes`` or by what was measured."""
    fork_bytes: int = 20 * MEBIBYTE
    spawn_bytes: int = 80 * MEBIBYTE
    start_timeout: float = 60.0
    """From a server's first use to its first answer: its imports."""
    fork_timeout: float = 10.0
    room_timeout: float = 600.0
    """Waiting for room, behind those who asked before."""
    open_timeout: float = 120.0
    """Opening once there is room: handshake and init tool."""
    call_timeout: float = 60.0
    """A tool call once it runs, where the call doesn't give its own."""
    queue_timeout: float = 600.0
    """A call's wait for one of the ``runnable`` places."""
    close_timeout: float = 5.0
    """A server's teardown tool; then again the end of its process."""
    result_bytes: int = 16 * MEBIBYTE
    """One message of a server."""
