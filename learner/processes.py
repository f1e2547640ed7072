"""The learner as several processes, one a node: where each one's place comes from, and how they end together.

Invariant: all of a run's processes go on, or none does. Each tells the others that it lives, and why when it stops;
whoever hears of a stop, or has heard nothing of another for too long, ends, whatever it was doing: a collective that
will never complete, a batch that it waits for, a checkpoint. All have ended within ``learner.process_timeout`` of the
first, with a message and a code that isn't 0, and the same command on each node goes on from the last checkpoint.

A process's place comes from the command line (--coordinator, --processes, --process), from Slurm (srun), or from
Kubernetes (an indexed Job with ENDSTATE_COORDINATOR and ENDSTATE_PROCESSES). Each source is there whole or not at
all, and all that are there agree; without any, the learner is one process.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np

from learner.errors import ProcessesError
from protocol.cli.failures import fail
from protocol.config import ConfigError, Learner

LOST = 3
"""Exit code of the processes that lost one. Where one stopped and said why, all have its code."""
_SILENCE = 0.8
"""Of ``learner.process_timeout``: silence after which a process is taken for lost. The rest is for ending."""
_BEATS = 16
"""Signs of life within ``learner.process_timeout``."""
_FIRST_PORT, _PORTS = 61440, 4096
"""Slurm jobs get their coordinator's port by their number, so that two on one node don't meet."""


@dataclass(frozen=True)
class Place:
    """Process ``process`` of ``processes``; the first one listens at ``coordinator``, HOST:PORT."""

    coordinator: str
    processes: int
    process: int


def locate(
    coordinator: str | None, processes: int | None, process: int | None, environment: Mapping[str, str]
) -> Place | None:
    """This process's place, from the command line's values and the environment; None: it is the only one.

    Raises :class:`ConfigError` for a source that is half there, makes no sense, or contradicts another one.
    """
    flags = {"--coordinator": coordinator, "--processes": processes, "--process": process}
    found = {
        "the command line": _place({name: None if value is None else str(value) for name, value in flags.items()}, ""),
        "Slurm": _slurm(environment),
        "Kubernetes": _kubernetes(environment),
    }
    found = {source: place for source, place in found.items() if place is not None}
    if len({(place.processes, place.process) for place in found.values()}) > 1:
        said = "; ".join(f"{source}: process {p.process} of {p.processes}" for source, p in found.items())
        raise ConfigError(f"it isn't clear which process of the learner this is ({said}): leave one of them out")
    place = next(iter(found.values()), None)
    return None if place is None or place.processes == 1 else place


def _slurm(environment: Mapping[str, str]) -> Place | None:
    names = ("SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID")
    nodes, tasks, process = (environment.get(name) for name in names)
    if tasks in (None, "1"):
        return None
    job = environment.get("SLURM_JOB_ID", "0")
    host = None if nodes is None else f"{_first_host(nodes)}:{_FIRST_PORT + int(job) % _PORTS}"
    return _place(
        dict(zip(names, (host, tasks, process), strict=True)),
        ". Start the learner's processes by srun, or one of them by srun -n 1",
    )


def _first_host(nodes: str) -> str:
    """Of a Slurm node list: ``gpu[007-009,012],cpu1`` begins with gpu007."""
    match = re.match(r"([^,\[]+)(?:\[(\w+))?", nodes)
    if not match:
        raise ConfigError(f"SLURM_STEP_NODELIST is {nodes!r}, which names no node")
    return match[1] + (match[2] or "")


def _kubernetes(environment: Mapping[str, str]) -> Place | None:
    names = ("ENDSTATE_COORDINATOR", "ENDSTATE_PROCESSES", "JOB_COMPLETION_INDEX")
    return _place(
        {name: environment.get(name) for name in names},
        ". An indexed Job sets JOB_COMPLETION_INDEX; its manifest sets the others (configs/learner.jobset.yaml)",
    )


def _place(values: Mapping[str, str | None], hint: str) -> Place | None:
    """Of one source's values, by name: coordinator, number of processes, this process."""
    missing = [name for name, value in values.items() if not value]
    if len(missing) == len(values):
        return None
    there = ", ".join(f"{name} ({value})" for name, value in values.items() if value)
    if missing:
        raise ConfigError(f"the place of this process is half said: {there}, without {' and '.join(missing)}{hint}")
    coordinator, *numbers = values.values()
    if not re.fullmatch(r".+:[1-9]\d{0,4}", coordinator) or not all(n.isdecimal() for n in numbers):
        raise ConfigError(f"no place of a process: {there}; needed are HOST:PORT and two whole numbers{hint}")
    processes, process = map(int, numbers)
    if process >= processes:
        raise ConfigError(f"no place of a process: {there}; processes are numbered from 0 to {processes - 1}{hint}")
    return Place(coordinator, processes, process)


def join(place: Place, learner: Learner) -> None:
    """Meet the other processes: from here on, JAX's devices are those of all. Call before JAX looks at its first.

    Raises :class:`ProcessesError` when they don't all come within ``learner.join_timeout``.
    """
    import jax

    # JAX would take SIGTERM for a notice to be heeded at the next checkpoint; here it ends the process.
    jax.config.update("jax_enable_preemption_service", False)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    bound = max(1, round(learner.process_timeout))
    try:
        jax.distributed.initialize(
            place.coordinator,
            place.processes,
            place.process,
            cluster_detection_method="deactivate",
            initialization_timeout=max(1, round(learner.join_timeout)),
            # JAX aborts on its own signs of life, too, with its own words. The watch comes first where Python can run.
            heartbeat_timeout_seconds=2 * bound,
            shutdown_timeout_seconds=bound,
        )
    except jax.errors.JaxRuntimeError as error:
        raise ProcessesError(
            f"process {place.process} of {place.processes} did not meet the others at {place.coordinator} within "
            f"{learner.join_timeout:g} s (learner.join_timeout): start bin/learner on every node, with the same "
            f"coordinator, whose address each of them must reach ({_summary(error)})"
        ) from error


class Stop(NamedTuple):
    """That a process must end: its exit code, and why."""

    code: int
    why: str


class Board(Protocol):
    """Where processes leave word for each other: the key-value store of JAX's coordinator."""

    def key_value_set(self, key: str, value: str, allow_overwrite: bool) -> None: ...

    def key_value_dir_get(self, key: str) -> list[tuple[str, str]]: ...


class Watch:
    """Tells the others that this process lives, and notices when one of them doesn't.

    A state machine: :meth:`turn` is called again and again, with the time.
    """

    _LIFE, _STOPS = "endstate/life/", "endstate/stops/"

    def __init__(self, board: Board, place: Place, timeout: float):
        self._board, self._place, self._timeout = board, place, timeout
        self._seen: dict[int, tuple[str, float]] = {}
        """By process: its last sign of life, and when that was new here."""
        self._answered: float | None = None

    def turn(self, now: float) -> Stop | None:
        """Whether this process must end. ``now``: seconds of a monotonic clock."""
        self._answered = now if self._answered is None else self._answered
        try:
            self._board.key_value_set(f"{self._LIFE}{self._place.process}", f"{now}", True)
            stops = self._board.key_value_dir_get(self._STOPS)
            life = {int(key.rpartition("/")[2]): sign for key, sign in self._board.key_value_dir_get(self._LIFE)}
        except RuntimeError as error:  # JAX's errors are
            if now - self._answered < self._timeout * _SILENCE:
                return None
            return Stop(LOST, f"process 0 doesn't answer any more ({_summary(error)})")
        self._answered = now
        for key, said in stops:
            if (process := int(key.rpartition("/")[2])) != self._place.process:
                code, _, why = said.partition(" ")
                return Stop(int(code), f"process {process} stopped: {why}")
        for process in range(self._place.processes):
            sign, since = self._seen.get(process, ("", now))
            new = life.get(process, "")
            self._seen[process] = (new, now if new != sign else since)
            if now - self._seen[process][1] >= self._timeout * _SILENCE:
                return Stop(LOST, f"nothing was heard of process {process} for {now - self._seen[process][1]:.1f} s")
        return None

    def tell(self, stop: Stop) -> None:
        """Tell the others that this process stops."""
        self._board.key_value_set(f"{self._STOPS}{self._place.process}", f"{stop.code} {stop.why}", True)


def of_another(error: BaseException) -> bool:
    """Whether a failure may be that of another process: it began in a collective or at JAX's coordinator."""
    import jax

    while error is not None:
        if isinstance(error, jax.errors.JaxRuntimeError):
            return jax.process_count() > 1
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def together(place: Place | None, learner: Learner) -> Iterator[None]:
    """Within it, this process ends when another one does, and the others when this one does. None: there are none.

    An exception never leaves it where there are others: it becomes this process's end, at once, because some thread
    or other will always be waiting for them.
    """
    if place is None:
        yield
        return
    timeout = learner.process_timeout
    watch = Watch(_client(), place, timeout)
    ended = threading.Event()
    threading.Thread(target=_look_after, args=(watch, place, timeout, ended), name="watch", daemon=True).start()
    try:
        yield
        # So that nobody takes for lost who has only finished first.
        barrier("the end of the run", learner.join_timeout)
        ended.set()
    except BaseException as error:
        if of_another(error):
            # A collective may fail at once when a process of it dies. The watch will say which, and end this one.
            time.sleep(timeout)
        _stop(watch, error)


def _look_after(watch: Watch, place: Place, timeout: float, ended: threading.Event) -> None:
    while not ended.wait(timeout / _BEATS):
        stop = watch.turn(time.monotonic())
        if stop is not None and not ended.is_set():
            _end(
                f"process {place.process} of {place.processes} ends with another one: {stop.why}. The same command on "
                "every node goes on from the last checkpoint",
                stop.code,
            )


def _stop(watch: Watch, error: BaseException) -> NoReturn:
    """End this process for ``error``, having told the others."""
    cause = error
    if isinstance(error, SystemExit):
        # Said already, by whoever turned the fault into a code.
        code, cause = error.code if isinstance(error.code, int) else 1, error.__context__ or error
    else:
        traceback.print_exc()
        code = 1
    try:
        watch.tell(Stop(code or 1, _summary(cause)))
    except RuntimeError:
        # The coordinator is gone, and with it whoever could listen.
        pass
    _end("", code or 1)


def _end(message: str, code: int) -> NoReturn:
    if message:
        try:
            fail("learner", message, code)
        except SystemExit:
            pass
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: threads that wait for another process would hold it up, and JAX at its own exit.
    os._exit(code)


def _summary(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


def _client() -> Any:
    """JAX's connection to its coordinator, which has no public name; Orbax takes it from there as well."""
    from jax._src import distributed

    return distributed.global_state.client


def barrier(name: str, timeout: float) -> None:
    """Wait for every process to come to the barrier of this ``name``, which is used once.

    Raises :class:`ProcessesError` when one doesn't within ``timeout`` seconds. One process doesn't wait.
    """
    import jax

    if jax.process_count() == 1:
        return
    try:
        _client().wait_at_barrier(f"endstate: {name}", round(timeout * 1000))
    except jax.errors.JaxRuntimeError as error:
        raise ProcessesError(
            f"not every process came to {name} within {timeout:g} s of the first ({_summary(error)})"
        ) from error


def gathered(values: np.ndarray) -> np.ndarray:
    """``values`` [N] float64 of every process, [processes, N], exact; a collective, which all call in one order."""
    import jax
    from jax.experimental import multihost_utils

    values = np.asarray(values, np.float64)
    if jax.process_count() == 1:
        return values[None]
    # As words: JAX would round a float64 to a float32.
    words = multihost_utils.process_allgather(values.view(np.uint32))
    return np.ascontiguousarray(words).view(np.float64)


def first() -> bool:
    """Whether this is the process that prints, announces and keeps the records of the run."""
    import jax

    return jax.process_index() == 0
