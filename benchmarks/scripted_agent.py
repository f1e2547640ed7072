"""An OpenAI-compatible chat endpoint that plays fixed tool calls: the same conversation for whoever asks.

Which calls is a function of the first user message, how far they are one of the number of tool results in the request,
so that the endpoint has no state. A request without tools is a judge's: it gets "Yes".
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Call = tuple[str, dict[str, Any]]
Script = Callable[[str], Sequence[Call]]


@contextmanager
def scripted_agent(script: Script) -> Iterator[str]:
    """The URL of the endpoint. ``script``: the calls for a first user message."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            body = json.dumps(_completion(asked, script)).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/chat/completions"
    finally:
        server.shutdown()
        server.server_close()


def _completion(asked: dict[str, Any], script: Script) -> dict[str, Any]:
    messages = asked["messages"]
    message: dict[str, Any] = {"role": "assistant", "content": "Yes"}
    if asked.get("tools"):
        first = next(message["content"] for message in messages if message["role"] == "user")
        calls, done = script(first), sum(message["role"] == "tool" for message in messages)
        if done < len(calls):
            name, arguments = calls[done]
            function = {"name": name, "arguments": json.dumps(arguments)}
            called = {"id": f"call-{done}", "type": "function", "function": function}
            message = {"role": "assistant", "content": None, "tool_calls": [called]}
        else:
            message["content"] = "That is done. <DONE>"
    finish = "tool_calls" if "tool_calls" in message else "stop"
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": usage}
