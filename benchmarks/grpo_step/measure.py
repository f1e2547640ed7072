"""What a learner's process says of itself; needs nothing but the standard library.

Invariant: CPU seconds are of all the process's threads, a step's share of the measured ones; the peak is the kernel's
account of the whole process.
"""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable
from pathlib import Path

WARM = 3
"""Steps before the measured ones: the first compiles."""


def resident() -> int:
    """Bytes at this moment."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def measured(steps: int, run: Callable[[int], object]) -> dict[str, float]:
    """``run(steps)``, which ends when the steps are done; {seconds, cpu} a step."""
    seconds, cpu = time.perf_counter(), time.process_time()
    run(steps)
    return {"seconds": (time.perf_counter() - seconds) / steps, "cpu": (time.process_time() - cpu) / steps}


def report(**facts: float) -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({**facts, "peak": peak}))
