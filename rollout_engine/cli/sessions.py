"""``bin/sessions``: serve sessions of MCP servers by the public Session Proxy's protocol, or say how each server runs.

A session is a forked child of a server that was imported once, where the server allows it, else a fresh process.
"""

from __future__ import annotations

import math
import os
import re
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import trio
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from protocol.cli.failures import exit_on_known_fault
from protocol.cli.verb import verb
from rollout_engine.errors import ConfigurationError
from rollout_engine.sessions.doctor import Finding, examine
from rollout_engine.sessions.errors import ServersFileError, SessionError
from rollout_engine.sessions.host import SessionHost
from rollout_engine.sessions.limits import MEBIBYTE, HostLimits
from rollout_engine.sessions.proxy.app import proxy_app
from rollout_engine.sessions.proxy.reuse import reusing
from rollout_engine.sessions.proxy.serve import CannotServe, bind, check_pem, serve_app, until_signal
from rollout_engine.sessions.search.server import SearchUnavailable
from rollout_engine.sessions.search.service import open_search
from rollout_engine.sessions.servers import load_servers

app = verb("sessions", __doc__)
console = Console(soft_wrap=True, highlight=False)

KNOWN = (ConfigurationError, ServersFileError, SessionError, SearchUnavailable, CannotServe)
KEY_VARIABLE = "THINKINGBOX_SESSION_PROXY_KEY"
SEARCH_KEY_VARIABLE = "TYPESENSE_API_KEY"

ServersOption = Annotated[Path, Parameter(help="The servers.yaml: which MCP servers there are.")]
PythonOption = Annotated[
    str | None, Parameter(help="What {python} in the file stands for: the Python that has the servers installed.")
]
InternalOption = Annotated[
    Path | None, Parameter(help="The folder of mcp_NAME.py servers that use_internal_servers means.")
]

StartOption = Annotated[
    float | None, Parameter(help="Seconds for a server to start: its imports and the handshake; 60 by default.")
]


@app.command
def serve(
    *,
    servers: ServersOption,
    python: PythonOption = None,
    internal: InternalOption = None,
    host: Annotated[str, Parameter(help="Listen at this address.")] = "127.0.0.1",
    port: Annotated[int, Parameter(help="Listen at this port; 0 takes a free one.")] = 7111,
    require_auth: Annotated[bool, Parameter(help="Clients must bear the key; /health is open to all.")] = False,
    api_key: Annotated[str | None, Parameter(help=f"The key; {KEY_VARIABLE} by default.")] = None,
    ssl_pem: Annotated[Path | None, Parameter(help="Serve HTTPS with this certificate and private key.")] = None,
    gc_enable: Annotated[bool, Parameter(help="Destroy sessions that have long been idle.")] = False,
    gc_minutes: Annotated[float, Parameter(help="How long that is.")] = 15.0,
    search: Annotated[
        str, Parameter(help="Knowledge search: auto (embedded), off, a Typesense's URL, or a typesense-server's path.")
    ] = "auto",
    search_key: Annotated[str | None, Parameter(help=f"Its API key; {SEARCH_KEY_VARIABLE} by default.")] = None,
    reuse: Annotated[
        int, Parameter(help="Keep so many initialized sessions; one asked for with the same configuration is a clone.")
    ] = 0,
    open: Annotated[int | None, Parameter(help="Most open sessions; further ones are asked to come again.")] = None,
    runnable: Annotated[int | None, Parameter(help="Most sessions in a call at once; 3 a core by default.")] = None,
    memory: Annotated[int | None, Parameter(help="MiB for sessions; four fifths of what is free by default.")] = None,
    start_timeout: StartOption = None,
    dry_run: Annotated[bool, Parameter(help="Check the file, the address, the key, and start nothing.")] = False,
) -> None:
    """Serve the public Session Proxy's HTTP protocol until Ctrl-C."""
    with exit_on_known_fault("sessions", KNOWN):
        specs = load_servers(servers, python, _folder(internal))
        key = _key(require_auth, api_key)
        limits = _limits(open, runnable, memory, start_timeout)
        if not 0 < gc_minutes < math.inf:
            raise ConfigurationError(f"--gc-minutes must be more than 0, not {gc_minutes:g}")
        if reuse < 0:
            raise ConfigurationError(f"--reuse must be 0 (none) or more, not {reuse}")
        if ssl_pem is not None:
            check_pem(ssl_pem)
        scheme = "http" if ssl_pem is None else "https"
        with bind(host, port) as listener:
            url = _url(scheme, host, listener.getsockname()[1])
            if dry_run:
                console.print(f"{_count(specs)} would be served at {url}: {', '.join(specs)}", markup=False)
                return
            opening_search = partial(open_search, search, key=search_key or os.environ.get(SEARCH_KEY_VARIABLE, ""))
            collecting = gc_minutes if gc_enable else None
            trio.run(_serve, specs, limits, reuse, listener, url, opening_search, ssl_pem, key, collecting)


@app.command
def doctor(
    names: Annotated[tuple[str, ...], Parameter(help="Only these servers.")] = (),
    *,
    servers: ServersOption,
    python: PythonOption = None,
    internal: InternalOption = None,
    start_timeout: StartOption = None,
) -> None:
    """Start every server once and say how its sessions are made, and why. Ends with 1 if one can't be started."""
    with exit_on_known_fault("sessions", KNOWN):
        specs = load_servers(servers, python, _folder(internal))
        for name in names:
            if name not in specs:
                raise ConfigurationError(f"{servers} has no server {name!r}; it has {', '.join(specs) or 'none'}")
        chosen = {name: spec for name, spec in specs.items() if not names or name in names}
        if not chosen:
            raise ConfigurationError(f"{servers} has no server")
        findings = trio.run(examine, chosen, _limits(start_timeout=start_timeout))
        console.print(_table(findings))
        failed = [finding for finding in findings if finding.fault]
        for finding in failed:
            console.print(f"\n{finding.fault}", markup=False)
        if failed:
            told = ", ".join(finding.server for finding in failed)
            console.print(f"\n{len(failed)} of {_count(chosen)} can't be started: {told}", markup=False)
            sys.exit(1)


async def _serve(specs, limits, reuse, listener, url, opening_search, pem, key, gc_minutes) -> None:
    async with opening_search() as knowledge, SessionHost(specs, limits) as sessions, reusing(sessions, reuse) as host:
        async with proxy_app(host, key=key, gc_minutes=gc_minutes, ranking=knowledge.ranking) as application:
            console.print(f"{_count(specs)} at {url}: {', '.join(specs)}", markup=False)
            console.print(f"knowledge search: {knowledge.note}; its ranking: {knowledge.ranking}", markup=False)
            await serve_app(application, listener, pem, until_signal)


def _table(findings: list[Finding]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column, wide in (("server", True), ("mode", False), ("clones", False), ("start", False), ("open", False)):
        table.add_column(column, no_wrap=True, justify="left" if wide or column in ("mode", "clones") else "right")
    table.add_column("why", overflow="fold")
    for finding in findings:
        mode = finding.mode
        if mode is None:
            told = Text(finding.fault.splitlines()[0])
            table.add_row(Text(finding.server), Text("fails", style="red"), "", "", "", told)
        else:
            why = Text("; ".join(filter(None, (mode.reason, mode.note))))
            times = f"{finding.start_seconds:.2f} s", f"{1000 * finding.open_seconds:.1f} ms"
            table.add_row(Text(finding.server), mode.name, "yes" if mode.clones else "no", *times, why)
    return table


def _url(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _key(required: bool, key: str | None) -> str | None:
    if not required:
        if key is not None:
            raise ConfigurationError("--api-key is of no use without --require-auth: give both, or neither")
        return None
    key = key if key is not None else os.environ.get(KEY_VARIABLE, "").strip()
    if not key:
        raise ConfigurationError(f"--require-auth needs a key: give --api-key, or set {KEY_VARIABLE}")
    if not re.fullmatch(r"[!-~]+", key):
        raise ConfigurationError("the key must be ASCII without spaces: a client sends it in a header")
    return key


def _limits(
    open: int | None = None,
    runnable: int | None = None,
    memory: int | None = None,
    start_timeout: float | None = None,
) -> HostLimits:
    """The host's own limits where an option isn't given."""
    options = {"open": open, "runnable": runnable, "memory": memory, "start-timeout": start_timeout}
    for name, value in options.items():
        if value is not None and not 0 < value < math.inf:
            raise ConfigurationError(f"--{name} must be more than 0, not {value:g}")
    memory_bytes = memory and memory * MEBIBYTE
    given = {"open": open, "runnable": runnable, "memory_bytes": memory_bytes, "start_timeout": start_timeout}
    return HostLimits(**{name: value for name, value in given.items() if value is not None})


def _folder(internal: Path | None) -> Path | None:
    if internal is not None and not internal.is_dir():
        raise ConfigurationError(f"--internal {internal}: there is no such folder")
    return internal


def _count(servers: dict) -> str:
    return f"{len(servers)} server{'' if len(servers) == 1 else 's'}"


if __name__ == "__main__":
    app()
