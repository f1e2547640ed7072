"""What a process has that a copy of it would share: threads, open files and sockets, children, paths of its own.

Invariant: whatever is named here makes two copies of one process meet; a process with nothing here can be forked.
"""

import os
import stat
import sys
import threading
import time

from . import control

THREAD_SECONDS = 1.0
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_temporary = {"tempfile.mkdtemp", "tempfile.mkstemp"}
_starts = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"}
_made = {}
_state = {"serving": False, "started": False}


def watch():
    """Note what this process makes for itself from now on. Python can't take an audit hook back."""
    sys.addaudithook(_note)


def serving():
    """From now on every new path counts: until here, in importing, only temporary names, which no other process has."""
    _state["serving"] = True


def _note(event, arguments):
    if event in _temporary or (event == "os.mkdir" and _state["serving"]):
        _made[arguments[0]] = True
    elif event == "open" and _state["serving"]:
        if isinstance(arguments[2], int) and arguments[2] & WRITING and not isinstance(arguments[0], int):
            _made[arguments[0]] = True
    elif event in _starts:
        _state["started"] = True


def made():
    """Paths made since :func:`watch` that still are there, as text. Compiled modules and devices don't count."""
    found = []
    for path in _made:
        try:
            name = os.fsdecode(path)
            mode = os.stat(name).st_mode
        except (OSError, TypeError, ValueError):
            continue
        if "__pycache__" not in name and (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            found.append(name)
    return found


def other_children():
    """Whether there are child processes that nobody asked this process to fork."""
    return _state["started"] and bool(set(control.children()) - control.forked)


def foreign_fds(ours):
    """What descriptors beyond ``ours`` are open on: ``["7 socket:[12]"]``. Devices are shared by nature."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd in ours:
            continue
        try:
            mode, target = os.fstat(fd).st_mode, os.readlink("/proc/self/fd/" + name)
        except OSError:
            continue  # the listing's own descriptor
        if not stat.S_ISCHR(mode):
            found.append(name + " " + target)
    return found


def threads():
    """How many threads there are, after giving those that are ending a moment to end."""
    deadline = time.monotonic() + THREAD_SECONDS
    while True:
        count = len(os.listdir("/proc/self/task"))
        if count == 1 or time.monotonic() > deadline:
            return count
        time.sleep(0.002)


def shared(ours):
    """Why a copy of this process would meet it or break, or nothing."""
    reasons = []
    fds = foreign_fds(ours)
    if fds:
        reasons.append("it holds " + ", ".join(fds[:5]))
    paths = made()
    if paths:
        reasons.append("it made " + ", ".join(paths[:5]))
    if other_children():
        reasons.append("it has child processes")
    count = threads()
    if count > 1:
        names = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
        reasons.append("it has {} threads ({})".format(count, ", ".join(names) or "not Python's"))
    return "; ".join(reasons)
