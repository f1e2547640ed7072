"""Runs jobs in forked grader children, and keeps what a test does from the engine.

Invariant: :meth:`GraderHost.run` returns an outcome that the child told with its job's key, or one that says how the
child ended without telling; a fault of the judge or of the session comes out as it is, whatever the test makes of it.
No child outlives its job, and none outlives the host.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any

import msgspec
import trio

from rollout_engine.errors import GraderError, JudgeError
from rollout_engine.grading.child.forks import Child, Zygote
from rollout_engine.grading.child.job import GraderLimits, Job, Outcome
from rollout_engine.sessions.errors import UnknownTool

_COMPILED = 1024
"""Test files whose code is kept."""

_FORGED = "the test wrote to the grader's own channel"


class GraderHost:
    """``python``: the interpreter of the children; ``modules``: folders where fixtures find modules of their own,
    which a process without privileges must be able to read."""

    def __init__(self, limits: GraderLimits | None = None, python: str = "", modules: Sequence[str] = ()) -> None:
        self.limits = limits or GraderLimits()
        self._python = python
        self._modules = tuple(modules)
        self._limiter = trio.CapacityLimiter(self.limits.concurrent)
        self._starting = trio.Lock()
        self._zygote: Zygote | None = None
        self._compiled: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> GraderHost:
        self._nursery = await self._stack.enter_async_context(trio.open_nursery())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ):
        self._nursery.cancel_scope.cancel()
        await self._stack.aclose()

    async def run(self, job: Job, judge: Any = None, session: Any = None) -> Outcome:
        """Run a test once. ``judge.ask(method, arguments)`` answers its questions, ``session.call_on`` its fixtures.

        Raises :class:`GraderError` when the child can't be started or the test's file can't be compiled, and whatever
        the judge or the session raises.
        """
        async with self._limiter:
            code = await self._code(job)
            key = secrets.token_hex(8)
            request = {
                "key": key,
                "uid": job.uid,
                "code": job.code,
                "function": job.function,
                "context": job.context,
                "fixtures": job.fixtures,
                "output_bytes": self.limits.output_bytes,
                "memory_bytes": self.limits.memory_bytes,
            }
            async with await (await self._forks()).fork(self._request(compile=False)) as child:
                with trio.move_on_after(self.limits.wall_seconds) as scope:
                    outcome = await self._talk(child, _written(request), code, key, judge, session)
                if scope.cancelled_caught:
                    return Outcome("limit", message=f"time: {self.limits.wall_seconds:g} s", wall_limited=True)
            return msgspec.structs.replace(outcome, cpu_seconds=child.cpu_seconds)

    async def _talk(self, child: Child, request: bytes, code: bytes, key: str, judge: Any, session: Any) -> Outcome:
        try:
            await child.send(request)
            await child.send(code)
            while True:
                said = await child.receive()
                if said is None:
                    return self._ended(await child.ended())
                try:
                    message = json.loads(said)
                    if message["key"] != key:
                        return Outcome("crashed", message=_FORGED)
                    if "outcome" in message:
                        return msgspec.convert(message["outcome"], Outcome)
                    target, method, arguments = message["ask"], message["method"], message["arguments"]
                except (ValueError, TypeError, KeyError, RecursionError):
                    return Outcome("crashed", message=_FORGED)
                await child.send(await self._answer(target, method, arguments, judge, session))
        except (trio.BrokenResourceError, OSError):
            return self._ended(await child.ended())

    async def _answer(self, target: str, method: str, arguments: list[Any], judge: Any, session: Any) -> bytes:
        """What the child is told. A question that there isn't is the test's own mistake, and is raised there."""
        try:
            if target == "judge":
                if judge is None:
                    raise JudgeError("the test asks a judge, and there is none: set judge.endpoint and judge.model")
                value = await judge.ask(method, arguments)
            else:
                if session is None:
                    raise GraderError("the test calls tools of the session, which can't be reached while it is graded")
                server, tool, values = arguments
                value = (await session.call_on(server, tool, values)).text
        except (TypeError, UnknownTool) as error:
            return msgspec.json.encode({"error": str(error)})
        return msgspec.json.encode({"value": value})

    def _ended(self, status: int) -> Outcome:
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            if number == signal.SIGXCPU:
                return Outcome("limit", message=f"CPU time: {self.limits.cpu_seconds} s")
            return Outcome("crashed", message=f"the test's process was ended by {_signal_name(number)}")
        return Outcome("crashed", message=f"the test's process exited with code {os.waitstatus_to_exitcode(status)}")

    async def _code(self, job: Job) -> bytes:
        """The test's file, compiled once in a child of its own."""
        place = (job.uid, job.code)
        if place in self._compiled:
            self._compiled.move_to_end(place)
            return self._compiled[place]
        said = None
        async with await (await self._forks()).fork(self._request(compile=True)) as child:
            with trio.move_on_after(self.limits.wall_seconds):
                try:
                    await child.send(msgspec.json.encode({"uid": job.uid, "code": job.code}))
                    said = await child.receive()
                except (trio.BrokenResourceError, OSError):
                    said = None
        if not said or said[:1] != b"C":
            fault = said[1:].decode(errors="replace") if said else "the compiler crashed or took too long"
            raise GraderError(f"{job.uid}: the test's file can't be compiled: {fault}")
        self._compiled[place] = said[1:]
        if len(self._compiled) > _COMPILED:
            self._compiled.popitem(last=False)
        return self._compiled[place]

    async def _forks(self) -> Zygote:
        async with self._starting:
            if self._zygote is None or self._zygote.dead:
                with trio.move_on_after(self.limits.start_seconds) as scope:
                    self._zygote = await self._nursery.start(Zygote.serve, self._python, self._modules)
                if scope.cancelled_caught:
                    raise GraderError(f"the grader did not start within {self.limits.start_seconds:g} s")
            return self._zygote

    def _request(self, compile: bool) -> dict[str, Any]:
        limits = self.limits
        return {
            "compile": compile,
            "resources": {
                "RLIMIT_CPU": [limits.cpu_seconds, limits.cpu_seconds + 1],
                "RLIMIT_AS": [limits.memory_bytes] * 2,
                "RLIMIT_FSIZE": [limits.file_bytes] * 2,
                "RLIMIT_NOFILE": [limits.descriptors] * 2,
                "RLIMIT_NPROC": [0, 0],
                "RLIMIT_CORE": [0, 0],
            },
        }


def _written(request: dict[str, Any]) -> bytes:
    """As JSON, with the NaN and Infinity that effects may hold: a test is to see them, as it does there."""
    data = msgspec.json.encode(request)
    # msgspec makes null of them, in a tenth of the time.
    return json.dumps(request).encode() if b"null" in data else data


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most of the real-time signals have none
        return f"signal {number}"
