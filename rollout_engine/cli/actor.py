"""``bin/actor``: one vLLM server, started or attached to, kept at the policy version that the learner announces.

It serves rollouts only while its log-probabilities on a probe sequence equal the learner's.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import signal
import socket
import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import httpx
import msgspec
from cyclopts import Parameter
from rich.console import Console

from protocol import config as configuration
from protocol.bus import check, connect
from protocol.cli.verb import ConfigOption, DryRunOption, SetOption, print_configuration, verb
from protocol.config import Config
from rollout_engine.actors.control import ServerControl
from rollout_engine.actors.server import VllmServer, check_folder, flags
from rollout_engine.actors.sidecar import Sidecar
from rollout_engine.cli.failures import exit_on_known_fault
from rollout_engine.errors import ConfigurationError

app = verb("actor", __doc__)
console = Console()


@app.default
def actor(
    *,
    config: ConfigOption,
    url: Annotated[
        tuple[str, ...], Parameter(help="Attach to this server, may be repeated. Default: actor.urls, or start one.")
    ] = (),
    id: Annotated[str, Parameter(help="Name on the bus. Default: host name and port of the server.")] = "",
    run: Annotated[str, Parameter(help="Run to serve. Default: the configuration's.")] = "",
    set: SetOption = (),
    dry_run: DryRunOption = False,
) -> None:
    """Start a vLLM server (or attach to one), bring it to each announced policy version and prove it."""
    with exit_on_known_fault("actor"):
        resolved = configuration.load(config, [*set, *([f"run={run}"] if run else [])])
        urls = url or resolved.actor.urls
        if id and len(urls) > 1:
            raise ConfigurationError("--id names one actor, but there are several URLs: leave it out")
        asyncio.run(_dry_run(resolved, urls) if dry_run else _until_signalled(_run(resolved, urls, id)))


async def _run(config: Config, urls: tuple[str, ...], id: str) -> None:
    # Proxies of the environment are for the outside world, never for a policy server.
    async with connect(config.nats, config.run) as bus, httpx.AsyncClient(trust_env=False) as client:

        def sidecar(url: str, server: VllmServer | None) -> Sidecar:
            name = id or default_id(url)
            return Sidecar(name, config, bus, ServerControl(url, client), server, lambda text: _tell(name, text))

        if urls:
            sidecars = [sidecar(url, None) for url in urls]
        else:
            server = VllmServer(config, config.path / "logs" / f"vllm-{config.actor.port}.log")
            sidecars = [sidecar(server.url, server)]
        async with asyncio.TaskGroup() as tasks:
            for each in sidecars:
                tasks.create_task(each.run())


async def _dry_run(config: Config, urls: tuple[str, ...]) -> None:
    print_configuration(config, console)
    async with httpx.AsyncClient(trust_env=False) as client:
        for url in urls:
            if not await ServerControl(url, client).healthy():
                raise ConfigurationError(f"no vLLM server answers at {url}: start it, or leave it out to start one")
    if not urls:
        folder = config.path / config.model.folder
        check_folder(folder)
        _check_model(folder)
        VllmServer(config, Path()).check_port()
        serve = ["bin/_python", "actor", "-m", "rollout_engine.actors.serve", *flags(config, folder.resolve())]
        command = f"VLLM_SERVER_DEV_MODE=1 {shlex.join(serve)}"
        console.print(f"the server by hand:\n{command}", markup=False, highlight=False, soft_wrap=True)
    await check(config.nats)
    console.print("NATS answers" + (f"; so do {', '.join(urls)}" if urls else "; the model's files parse"))


def _check_model(folder: Path) -> None:
    """Raise :class:`ConfigurationError` unless config.json and every safetensors header can be read."""
    from safetensors import SafetensorError, safe_open

    try:
        msgspec.json.decode((folder / "config.json").read_bytes())
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"{folder / 'config.json'} is not JSON: {error}") from error
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, "numpy"):
                pass
        except SafetensorError as error:
            raise ConfigurationError(f"{file} is not a safetensors file: {error}") from error


async def _until_signalled(work) -> None:
    """Run ``work``; SIGTERM ends it in order, with exit code 0."""
    task = asyncio.ensure_future(work)
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True
        task.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    try:
        await task
    except asyncio.CancelledError:
        if not stopped:
            raise


def default_id(url: str) -> str:
    """A name for the actor at ``url`` that is safe as a key on the bus."""
    parts = urlsplit(url)
    host = socket.gethostname() if parts.hostname in ("127.0.0.1", "localhost", "0.0.0.0") else parts.hostname
    return re.sub(r"[^A-Za-z0-9-]+", "-", f"{host}-{parts.port or 80}")


def _tell(id: str, text: str) -> None:
    console.print(f"[bold]actor {id}[/] ", end="")
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    sys.stdout.flush()


if __name__ == "__main__":
    app()
