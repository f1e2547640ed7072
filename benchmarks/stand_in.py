"""A stand-in for a vLLM server: it speaks its token endpoint over real HTTP and always samples the same ids.

Invariant: what it costs is its own process's: the engine sees a server that is instant.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


@contextmanager
def stand_in(ids: Sequence[int]) -> Iterator[str]:
    """Serve in another process; yields the URL."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(list(ids), there), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{here.recv()}"
    finally:
        process.kill()
        process.join()


def _serve(ids: list[int], port: Connection) -> None:
    asyncio.run(_listen(ids, port))


async def _listen(ids: list[int], port: Connection) -> None:
    logprobs = {"content": [{"logprob": -0.5}] * len(ids)}
    choice = {"token_ids": ids, "logprobs": logprobs, "finish_reason": "stop"}
    body = json.dumps({"choices": [choice]}).encode()
    answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                asked = await reader.readexactly(int(_LENGTH.search(head)[1]))
                assert asked.startswith(b'{"token_ids":[')
                writer.write(answer)
                await writer.drain()
        except asyncio.IncompleteReadError:
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", limit=2**24)
    port.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()
