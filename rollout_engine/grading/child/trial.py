"""One run of one test, inside the grader child.

Invariant: standard library only. The result is written once, after the test has come to its end, with the key that
came with the job; nothing that a test prints, returns or writes elsewhere can take its place.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import marshal
import math
import struct
import sys
import traceback

import injection
import standins


def run(channel):
    """Serve the one job that comes over ``channel``, a stream socket."""
    job = json.loads(receive(channel))
    code = marshal.loads(receive(channel))
    key, limit = job["key"], job["output_bytes"]

    def ask(target, method, arguments):
        tell(channel, {"key": key, "ask": target, "method": method, "arguments": arguments})
        answer = json.loads(receive(channel))
        if "error" in answer:
            raise TypeError(answer["error"])
        return answer["value"]

    prints = _Prints(limit)
    sys.stdout = sys.stderr = prints
    outcome = _outcome(job, code, ask)
    for name in ("message", "trace"):
        outcome[name] = outcome.get(name, "")[-limit:]
    outcome |= {"prints": prints.getvalue(), "metadata": _noted(outcome["metadata"], limit)}
    tell(channel, {"key": key, "outcome": outcome})


def _outcome(job, code, ask):
    context = standins.TestContext.of(job["context"])
    judge = standins.Judge(ask)
    standins.SessionClientFixture.ask = staticmethod(ask)
    space = {"__name__": "task_test", "__builtins__": __builtins__}
    try:
        with contextlib.ExitStack() as stack:
            exec(code, space)
            test = space[job["function"]]
            runtime = {"x": context, "judge": judge}
            wanted = injection.injected(test, ())
            made = _make_fixtures(job["fixtures"], [name for name in wanted if name not in runtime], runtime, stack)
            result = test(**injection.make_arguments(wanted, made, runtime))
        return _rewarded(result) | {"metadata": _metadata(context)}
    except MemoryError:
        context = None
        return {"kind": "limit", "message": f"memory: {job['memory_bytes'] >> 20} MiB", "metadata": {}}
    except BaseException as error:  # SystemExit and KeyboardInterrupt are no way to pass
        failed = isinstance(error, AssertionError)
        message = _said(error) if failed else f"{type(error).__name__}: {_said(error)}"
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == job["uid"]]
        source = job["code"].splitlines()
        line = lines[-1] if lines else 0
        return {
            "kind": "fail" if failed else "raised",
            "message": message,
            "line": line,
            "source": source[line - 1].strip() if 0 < line <= len(source) else "",
            "trace": "".join(traceback.format_exception_only(type(error), error)),
            "metadata": _metadata(context),
        }


def _said(error):
    """The words of an exception, whose own ``__str__`` may fail."""
    try:
        return str(error)
    except Exception as fault:
        return f"<its words can't be had: {type(fault).__name__}>"


def _metadata(context):
    return getattr(context, "metadata", None)


def _noted(metadata, limit):
    """What a test left in ``x.metadata`` as a mapping of JSON, whatever it is."""
    try:
        noted = json.loads(json.dumps(metadata, default=str))
    except (TypeError, ValueError, RecursionError):
        return {"unreadable": _shown(metadata)[:limit]}
    if not isinstance(noted, dict):
        return {"unreadable": _shown(metadata)[:limit]}
    if len(json.dumps(noted)) > limit:
        return {"too_large": sorted(noted)[:20]}
    return noted


def _shown(value):
    try:
        return repr(value)
    except Exception as fault:
        return f"<a {type(value).__name__} that can't be shown: {type(fault).__name__}>"


def _rewarded(result):
    if result is None:
        return {"kind": "pass", "reward": 1.0}
    try:
        reward = float(result)
    except (TypeError, ValueError, OverflowError):
        reward = math.nan
    if isinstance(result, (str, bytes, bytearray)) or not 0.0 <= reward <= 1.0:
        return {"kind": "raised", "message": f"the test returned {_shown(result):.200}, which is no reward from 0 to 1"}
    return {"kind": "pass", "reward": reward}


class FixtureFault(Exception):
    """A fixture that can't be made."""


def _make_fixtures(definitions, wanted, runtime, stack):
    """{name: value} of the fixtures ``wanted``, those that they need made before them."""
    factories = {}

    def needs(name):
        kind = definitions[name]["type"]
        module, _, leaf = kind.rpartition(".")
        try:
            factories[name] = getattr(importlib.import_module(module), leaf)
        except (ImportError, AttributeError, ValueError) as error:
            raise FixtureFault(f"fixture {name!r}: there is no {kind}: {error}") from error
        return injection.injected(factories[name], definitions[name]["arguments"])

    try:
        order = injection.injection_order(wanted, needs, definitions)
    except ValueError as error:
        raise FixtureFault(str(error)) from error
    made = {}
    for name in order:
        value = factories[name](
            **definitions[name]["arguments"], **injection.make_arguments(needs(name), made, runtime)
        )
        if hasattr(value, "__enter__") and hasattr(value, "__exit__"):
            value = stack.enter_context(value)
        made[name] = value
    return made


class _Prints(io.StringIO):
    """Keeps the first ``limit`` characters."""

    def __init__(self, limit):
        super().__init__()
        self._left = limit

    def write(self, text):
        super().write(text[: self._left])
        self._left = max(0, self._left - len(text))
        return len(text)


def tell(channel, message):
    """Send JSON. A lone surrogate, which UTF-8 can't hold, is told as a question mark."""
    send(channel, json.dumps(message, ensure_ascii=False).encode(errors="replace"))


def send(channel, data):
    channel.sendall(struct.pack(">I", len(data)) + data)


def receive(channel):
    (size,) = struct.unpack(">I", _exactly(channel, 4))
    return _exactly(channel, size)


def _exactly(channel, size):
    data = bytearray()
    while len(data) < size:
        part = channel.recv(min(size - len(data), 1 << 20))
        if not part:
            raise EOFError
        data += part
    return bytes(data)
