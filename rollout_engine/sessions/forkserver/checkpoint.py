"""A Python server stopped where it starts its event loop, and continued from there in every session.

Invariant: the server's module runs once, exactly as ``python -m MODULE`` or ``python SCRIPT`` would run it, up to its
first ``asyncio.run`` or ``anyio.run``. That call returns only in forked children, into the real one.
"""

import asyncio
import asyncio.base_events
import functools
import gc
import importlib.abc
import os
import platform
import runpy
import selectors
import sys
import traceback

from . import certificates, control, memory, preloading, probe, serve, transport


class OtherStart(BaseException):
    """The server starts its loop in a way that can't be stopped at."""


class Checkpoint:
    def __init__(self, sock):
        self._sock = sock
        self._reached = False
        self._run_forever = asyncio.base_events.BaseEventLoop.run_forever

    @property
    def reached(self):
        return self._reached

    def wrap(self, run, name):
        """``run``, which at its first call stops here first."""

        @functools.wraps(run)
        def wrapper(*args, **kwargs):
            if not self._reached:
                self._stop(name)
            return run(*args, **kwargs)

        return wrapper

    def refuse_other_starts(self):
        checkpoint = self

        def run_forever(loop):
            if not checkpoint._reached:
                raise OtherStart
            return checkpoint._run_forever(loop)

        asyncio.base_events.BaseEventLoop.run_forever = run_forever

    def _stop(self, name):
        self._reached = True
        asyncio.base_events.BaseEventLoop.run_forever = self._run_forever
        certificates.keep()
        gc.collect()
        gc.freeze()
        memory.consolidate()
        shared = probe.shared({0, 1, 2, self._sock.fileno()})
        report = {"ready": not shared, "start": name, "python": platform.python_version(), "reason": shared}
        control.send(self._sock, report)
        probe.serving()
        fd = serve.serve(self._sock, self._sock.close)
        serve.take_standard_streams(fd)


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls ``actions[name](module)`` when a module of that name has been imported."""

    def __init__(self, actions):
        self._actions = actions

    def find_spec(self, name, path=None, target=None):
        if name not in self._actions:
            return None
        action = self._actions.pop(name)
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                break
        else:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            action(module)

        spec.loader.exec_module = exec_module
        return spec


def serve_python(sock, job):
    """Run the job's module or script to its checkpoint and serve; in a child: run on to the program's end."""
    checkpoint = Checkpoint(sock)
    selectors.DefaultSelector = selectors.PollSelector  # an epoll object would be shared by copies of a live loop
    asyncio.run = asyncio.runners.run = checkpoint.wrap(asyncio.run, "asyncio.run")
    checkpoint.refuse_other_starts()

    def anyio_imported(module):
        module.run = checkpoint.wrap(module.run, "anyio.run")

    actions = {"anyio._core._eventloop": anyio_imported, "mcp.server.stdio": transport.install}
    for name in [name for name in actions if name in sys.modules]:  # a .pth file may have been earlier
        actions.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, AfterImport(actions))
    probe.watch()
    preloading.own(job["module"])
    try:
        run(job)
    except OtherStart:
        reason = "it starts its event loop by hand, not by asyncio.run or anyio.run"
    except BaseException:
        if checkpoint.reached:
            raise
        reason = "it failed before it started an event loop: " + traceback.format_exc().strip().splitlines()[-1]
        traceback.print_exc()
    else:
        if checkpoint.reached:
            return
        reason = "it ended without starting an event loop by asyncio.run or anyio.run"
    control.send(sock, {"ready": False, "reason": reason})
    sys.stderr.flush()
    control.end_all_children()
    os._exit(1)


def run(job):
    """As the interpreter's own command line would."""
    searches_here = not (sys.flags.isolated or getattr(sys.flags, "safe_path", False))
    if job["module"]:
        sys.argv = ["-m", *job["args"]]
        if searches_here:
            sys.path[0] = os.getcwd()
        runpy.run_module(job["module"], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [job["script"], *job["args"]]
        if searches_here:
            sys.path[0] = os.path.dirname(os.path.realpath(job["script"]))
        runpy.run_path(job["script"], run_name="__main__")
