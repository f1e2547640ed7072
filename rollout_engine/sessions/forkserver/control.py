"""Control lines: how a host asks a process to fork itself and to account for a child that ended.

Invariant: a control line is NUL + one JSON object + newline, in both directions, with descriptors attached to it. JSON
never starts with NUL, so control lines share a stream with JSON-RPC.

    {"fork": {"seed": int, "bound": bool}} + session socket  ->  {"pid": int} + pidfd
    {"reap": pid}                                            ->  {"cpu": seconds, "peak": bytes, "status": wait status}
"""

import array
import ctypes
import json
import os
import random
import signal
import socket
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
REAP_SECONDS = 2.0
LIBC = ctypes.CDLL(None, use_errno=True)
forked = set()
"""Pids of what this process forked on request and hasn't accounted for."""


def encode(message):
    return b"\0" + json.dumps(message).encode() + b"\n"


def send(sock, message, fds=()):
    """One control line on a blocking socket."""
    line = encode(message)
    sent = sock.sendmsg([line], rights(fds))
    while sent < len(line):
        sent += sock.send(line[sent:])


def rights(fds):
    """Ancillary data that takes descriptors along."""
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []


def received_fds(ancillary):
    """The descriptors that came with a message (close-on-exec)."""
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    for fd in fds:
        os.set_inheritable(fd, False)
    return list(fds)


def die_with_parent(parent):
    """The kernel kills this process when its parent ends; ``parent`` is the pid that it should still have."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def outlive_parent():
    """Undo :func:`die_with_parent`: from now on this process sees for itself that its parent has ended."""
    LIBC.prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)


def adopt_orphans():
    """Descendants whose parent ends become children of this process, so that they can be ended and accounted for."""
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def fork(request, prepare=None):
    """Fork. In the parent: (pid, pidfd). In the child: (0, None), in a process group of its own, random state seeded.

    ``bound``: the kernel ends the child with this process. ``prepare()`` runs first of all in the child. Raises OSError
    where the system has no room for a process or a descriptor; there is no child then.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        forked.add(pid)
        return pid, pidfd
    forked.clear()
    if prepare is not None:
        prepare()
    if request.get("bound", True):
        die_with_parent(parent)
    os.setsid()
    adopt_orphans()
    seed(request.get("seed", 0))
    return 0, None


def seed(value):
    """Module-level random state of a child: the standard library's, and numpy's where the server has loaded it."""
    random.seed(value)
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed(value % 2**32)


def reap(pid):
    """End a child, if it hasn't ended, with what is left of its process group, and say what all of it used."""
    cpu, peak, outcome = 0.0, 0, None
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return {"cpu": cpu, "peak": peak, "status": outcome}  # no child of ours: its pid may be another's by now
    for end in (os.kill, os.killpg):
        try:
            end(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
    deadline = time.monotonic() + REAP_SECONDS
    while True:
        try:
            ended, status, usage = os.wait4(pid if outcome is None else -pid, os.WNOHANG)
        except ChildProcessError:
            break
        if not ended:
            if time.monotonic() > deadline:
                break
            time.sleep(0.001)
            continue
        cpu += usage.ru_utime + usage.ru_stime
        peak = max(peak, usage.ru_maxrss * 1024)
        if ended == pid:
            outcome = status
            forked.discard(pid)
    return {"cpu": cpu, "peak": peak, "status": outcome}


def end_all_children(seconds=5.0):
    """Kill every descendant: orphans come here, so the loop ends only when nothing is left."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for child in children():
            try:
                os.kill(child, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


def children():
    """Pids whose parent is this process."""
    me = str(os.getpid())
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[1] == me:
                found.append(int(name))
    return found
