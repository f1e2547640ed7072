"""``bin/nats``: a NATS server with JetStream on disk, kept running until Ctrl-C.

A server that dies is started again; the log of a run survives either way.
"""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from protocol import config as configuration
from protocol.cli.failures import exit_on_known_fault, fail
from protocol.cli.verb import SetOption, print_configuration, verb
from protocol.config import Nats
from protocol.server import NatsServer, find_binary

app = verb("nats", __doc__)
console = Console(soft_wrap=True, highlight=False)

_CHECK = 0.5
"""Seconds between looks at the server."""


@app.default
def nats(
    *,
    config: Annotated[Path | None, Parameter(help="The run's YAML file: its URL and folder are served.")] = None,
    folder: Annotated[Path | None, Parameter(help="Serve this folder instead of RUN/nats.")] = None,
    url: Annotated[str | None, Parameter(help="Listen here instead of nats.url.")] = None,
    max_payload: Annotated[int | None, Parameter(help="Largest message in bytes; 1048576 by default.")] = None,
    set: SetOption = (),
    dry_run: Annotated[bool, Parameter(help="Say what would be started, and check that it can be.")] = False,
) -> None:
    """Serve a run's log."""
    with exit_on_known_fault("nats"):
        resolved = configuration.load(config, set) if config is not None else None
        if folder is None and resolved is None:
            fail("nats", "give --config FILE or --folder FOLDER: the log must live somewhere")
        where = folder or resolved.path / "nats"
        server = NatsServer(where, url or (resolved.nats if resolved else Nats()).url, max_payload)
        if dry_run:
            if resolved is not None:
                print_configuration(resolved, console)
            server.check()
            console.print(f"{find_binary()} would serve {server.folder} at {server.url}")
            return
        _serve(server)


def _serve(server: NatsServer) -> None:
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with server:
        if server.owned:
            console.print(f"NATS at {server.url}, its log in {server.folder / 'jetstream'}")
        else:
            console.print(f"NATS at {server.url} is another process's already; standing by")
        restarts = 0
        while not stop.wait(_CHECK):
            if server.failure is not None:
                raise server.failure
            if not server.owned:
                server.start()
            if server.restarts > restarts:
                restarts = server.restarts
                console.print("nats-server had died, or its disk had been full: it was started again")


if __name__ == "__main__":
    app()
