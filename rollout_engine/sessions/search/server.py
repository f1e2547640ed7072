"""A ``typesense-server`` of our own, for as long as a block runs.

Invariant: its data folder is temporary, it listens on one address only, and it is gone when the block is left.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from subprocess import STDOUT

import httpx
import trio

KEY = "Fake"
"""What published knowledge servers send."""
POLL = 0.2


class SearchUnavailable(Exception):
    """No knowledge search. The message names the fault and the way out."""


@asynccontextmanager
async def typesense_server(binary: Path, host: str, port: int, bound: float) -> AsyncIterator[None]:
    """Run ``binary`` and wait until it answers, ``bound`` seconds at most. Raises SearchUnavailable."""
    with tempfile.TemporaryDirectory(prefix="typesense-") as folder:
        log = Path(folder, "server.log")
        (data := Path(folder, "data")).mkdir()
        command = [str(binary), f"--data-dir={data}", f"--api-key={KEY}", f"--api-address={host}", f"--api-port={port}"]
        with log.open("wb") as output:
            async with trio.open_nursery() as nursery:
                run = partial(trio.run_process, command, stdout=output, stderr=STDOUT, check=False)
                try:
                    process: trio.Process = await nursery.start(run)
                except OSError as error:
                    raise SearchUnavailable(f"{binary} can't be started: {error.strerror}") from error
                await _until_well(process, f"http://{host}:{port}", bound, binary, log)
                yield
                nursery.cancel_scope.cancel()


async def _until_well(process: trio.Process, url: str, bound: float, binary: Path, log: Path) -> None:
    told = f"it did not answer at {url} within {bound:g} s"
    async with httpx.AsyncClient(timeout=bound) as client:
        with trio.move_on_after(bound):
            while process.returncode is None:
                try:
                    if (await client.get(f"{url}/health")).status_code == 200:
                        return
                except httpx.TransportError:
                    # It doesn't listen yet.
                    pass
                await trio.sleep(POLL)
            told = f"it ended with code {process.returncode}"
    last = log.read_text(errors="replace").strip().splitlines()[-1:] or ["it wrote nothing"]
    raise SearchUnavailable(f"{binary}: {told}; its last line: {last[0]}")
