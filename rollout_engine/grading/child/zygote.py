"""The grader's fork server: a program of its own, standard library only.

Invariant: it runs no code of a test itself. Each request forks one child, which gives up its privileges, takes its job
from a socket of its own and ends; the zygote tells when and how. A child's signals reach no other process: each has a
user of its own where root started this, and from Linux 6.12 on signals are kept in whoever started it. When its control
socket closes, its children are killed and it ends.

Started as ``python zygote.py CONTROL_FD FOLDER…``, with folders of fixtures' modules. Requests over the control
socket (SOCK_SEQPACKET): a JSON object of limits with the job's socket attached. Replies: ``{"pid"}`` with a pidfd
attached, later ``{"ended": pid, "status", "cpu"}``.
"""

from __future__ import annotations

import array
import ctypes
import gc
import importlib.util
import itertools
import json
import os
import resource
import select
import signal
import socket
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_ENGINE = os.path.dirname(os.path.dirname(_HERE))
_ALONE = {
    "injection": os.path.join(_ENGINE, "environments", "thinkingbox", "dataset", "injection.py"),
    "rubrics": os.path.join(_ENGINE, "grading", "judge", "rubrics.py"),
}
"""Files of the engine that stand alone."""


def _load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


sys.path.insert(0, _HERE)
for _name, _path in _ALONE.items():
    _load(_name, _path)

import standins  # noqa: E402 (these two import what was loaded above)
import trial  # noqa: E402

PRELOADED = (
    "base64 calendar collections copy csv dataclasses datetime decimal difflib enum fractions functools hashlib html "
    "importlib itertools logging math operator random re statistics string textwrap time typing unicodedata "
    "urllib.parse uuid zoneinfo"
).split()
"""Of the standard library: a child without privileges may not be able to read them any more."""

NOBODY = 65534
USERS = range(61184, 65520)
"""Users that are nobody's account (systemd keeps them for services on the fly): each child that lives has its own."""
CHANNEL = 48
"""Where a child's socket lies, out of the way of what a test might write to by number."""

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_CLONE_NEWNET = 0x40000000
_LANDLOCK_CREATE_RULESET, _LANDLOCK_RESTRICT_SELF, _LANDLOCK_SCOPE_SIGNAL = 444, 446, 1 << 1
_libc = ctypes.CDLL(None, use_errno=True)


def main(control):
    for name in PRELOADED:
        __import__(name)
    standins.install()
    if os.geteuid() == 0:
        _libc.unshare(_CLONE_NEWNET)  # graders need no network; where that isn't allowed they have one
    gc.collect()
    gc.freeze()
    control.send(b"ready")
    children, users, numbers = {}, {}, itertools.cycle(USERS)
    for _ in range(os.getpid() % len(USERS)):  # other fork servers begin elsewhere
        next(numbers)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor != control.fileno():
                poll.unregister(descriptor)
                users.pop(descriptor)
                _tell_end(control, children.pop(descriptor), descriptor)
                continue
            request, attached = _receive(control)
            if not request:
                for pid in children.values():
                    os.kill(pid, signal.SIGKILL)
                return
            user = next(number for number in numbers if number not in users.values())
            pid = os.fork()
            if pid == 0:
                _child(control, json.loads(request), attached[0], children, user)
            os.close(attached[0])
            pidfd = os.pidfd_open(pid)
            children[pidfd], users[pidfd] = pid, user
            poll.register(pidfd, select.POLLIN)
            _send(control, {"pid": pid}, [pidfd])


def _child(control, limits, descriptor, siblings, user):
    status = 70
    try:
        channel = _enter(control, limits, descriptor, siblings, user)
        if limits["compile"]:
            _compile(channel)
        else:
            trial.run(channel)
        status = 0
    except EOFError:
        pass  # the engine has given up
    finally:
        os._exit(status)


def _enter(control, limits, descriptor, siblings, user):
    """Give up everything but the job's socket, and become ``user``."""
    os.setsid()
    control.close()
    for pidfd in siblings:
        os.close(pidfd)
    empty = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(empty, standard)
    os.close(empty)
    if descriptor != CHANNEL:
        os.dup2(descriptor, CHANNEL)
        os.close(descriptor)
    os.environ.clear()
    for kind, (soft, hard) in limits["resources"].items():
        number = getattr(resource, kind)
        _, most = resource.getrlimit(number)
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        resource.setrlimit(number, (soft, hard))
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        try:
            os.setresuid(user, user, user)
        except OSError:  # a container may have no such number
            os.setresuid(NOBODY, NOBODY, NOBODY)
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _keep_signals_in()
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return socket.socket(fileno=CHANNEL)


def _keep_signals_in():
    """From now on this process can send signals to itself alone. Earlier kernels answer that they don't know it."""
    scope = (ctypes.c_uint64 * 3)(0, 0, _LANDLOCK_SCOPE_SIGNAL)
    rules = _libc.syscall(_LANDLOCK_CREATE_RULESET, scope, ctypes.c_size_t(ctypes.sizeof(scope)), 0)
    if rules >= 0:
        _libc.syscall(_LANDLOCK_RESTRICT_SELF, rules, 0)
        os.close(rules)


def _compile(channel):
    """Compile a test's file for later children; a source that can't be compiled is told as its error."""
    import marshal

    job = json.loads(trial.receive(channel))
    try:
        code = marshal.dumps(compile(job["code"], job["uid"], "exec", dont_inherit=True))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        trial.send(channel, b"E" + f"{type(error).__name__}: {error}".encode(errors="replace"))
    else:
        trial.send(channel, b"C" + code)


def _tell_end(control, pid, pidfd):
    _, status, usage = os.wait4(pid, 0)
    os.close(pidfd)
    _send(control, {"ended": pid, "status": status, "cpu": usage.ru_utime + usage.ru_stime}, [])


def _send(control, message, descriptors):
    attached = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    control.sendmsg([json.dumps(message).encode()], attached)


def _receive(control):
    size = array.array("i").itemsize
    data, attached, _, _ = control.recvmsg(4096, socket.CMSG_SPACE(size))
    descriptors = array.array("i")
    for _, kind, payload in attached:
        if kind == socket.SCM_RIGHTS:
            descriptors.frombytes(payload[: len(payload) - len(payload) % size])
    return data, list(descriptors)


if __name__ == "__main__":
    sys.path += sys.argv[2:]
    main(socket.socket(fileno=int(sys.argv[1])))
