"""Ends this process when its parent ends, whatever ended the parent.

Invariant: a policy server never outlives its sidecar, so a killed run leaves no process that holds a port,
a GPU, or weights nobody proves. The kernel keeps the promise (Linux); elsewhere orderly exits only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel send SIGKILL to this process when ``parent``, its parent's process id, is gone.

    Call it in the child's main thread. The signal follows the parent's *thread*, so the parent must have
    started this process from a thread that lives as long as it does.
    """
    if not sys.platform.startswith("linux"):
        return
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        # It died before we asked, so the signal will never come.
        os.kill(os.getpid(), signal.SIGKILL)
