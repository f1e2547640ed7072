"""The control side of a vLLM server: health, load, weights, and the answer to a probe.

Invariant: a call returns what the server said or raises :class:`ControlError` naming the call; nothing here
decides anything. asyncio only; the weight calls need ``VLLM_SERVER_DEV_MODE=1``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import add
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from protocol.records import ActorLoad

UNPROVEN = "unproven"
"""Label of weights that nobody has announced. Tokens that carry it are refused by the engine."""

_LOAD: dict[str, tuple[str, Callable[[float, float], float]]] = {
    "vllm:num_requests_running": ("running", add),
    "vllm:num_requests_waiting": ("waiting", add),
    "vllm:kv_cache_usage_perc": ("kv_use", max),
    "vllm:num_preemptions_total": ("preemptions", add),
}
"""Figure of each of the server's metrics, and how those of several engine cores make one."""


class ControlError(Exception):
    """The server failed to do as asked."""


def label(version: int) -> str:
    """How a server names proven weights in its answers."""
    return f"v{version}"


def provisional(version: int) -> str:
    """How it names them from the load to the proof: the engine holds back what they sampled until they are proven."""
    return f"v{version}?"


class ServerControl:
    """Control calls to the server at ``url``. ``timeout`` bounds each of the quick ones, in seconds."""

    def __init__(self, url: str, client: httpx.AsyncClient, timeout: float = 5.0):
        self.url = url.rstrip("/")
        self._client = client
        self._timeout = timeout

    async def healthy(self) -> bool:
        """Whether ``/health`` answers within ``timeout``."""
        try:
            return (await self._client.get(f"{self.url}/health", timeout=self._timeout)).status_code == 200
        except httpx.RequestError:
            return False

    async def load(self) -> ActorLoad:
        """The server's own load figures."""
        answer = await self._call("GET", "/metrics", self._timeout)
        values = dict.fromkeys((figure for figure, _ in _LOAD.values()), 0.0)
        with _reading(answer):
            for line in answer.text.splitlines():
                name, _, rest = line.partition("{")
                if name in _LOAD:
                    figure, together = _LOAD[name]
                    values[figure] = together(values[figure], float(rest.rpartition(" ")[2]))
            kv_use = values.pop("kv_use")
            return ActorLoad(kv_use=kv_use, **{figure: int(value) for figure, value in values.items()})

    async def model(self) -> str:
        """Name of the served model."""
        answer = await self._call("GET", "/v1/models", self._timeout)
        with _reading(answer):
            return answer.json()["data"][0]["id"]

    async def weight_label(self) -> str:
        answer = await self._call("GET", "/weight_info", self._timeout)
        with _reading(answer):
            return answer.json()["weight_version"]

    async def set_weight_label(self, text: str) -> None:
        await self._call("POST", "/update_weight_version", self._timeout, json={"new_version": text})

    async def pause(self, timeout: float) -> None:
        """Hold running requests where they are; new ones wait. The cache is forgotten by :meth:`reset_prefix_cache`,
        after the load; that pausing does it too is deprecated."""
        await self._call("POST", "/pause?mode=keep&clear_cache=false", timeout)

    async def abort(self, timeout: float) -> None:
        """End every running request without an answer, and pause."""
        await self._call("POST", "/pause?mode=abort&clear_cache=false", timeout)

    async def resume(self) -> None:
        await self._call("POST", "/resume", self._timeout)

    async def load_weights(self, folder: Path, timeout: float) -> None:
        """Load a folder's weights on every rank. The server must be paused."""
        await self._call(
            "POST", "/collective_rpc", timeout, json={"method": "load_policy", "args": [str(folder)], "kwargs": {}}
        )

    async def reset_prefix_cache(self, timeout: float) -> None:
        """Forget cached keys and values; requests that are held are computed anew when they go on.

        So each token's log-probability is what its version gives after everything before it. To keep the held
        requests' keys and values isn't on offer: vLLM drops its prefix cache whole, or not while requests run. It
        would save little: the next turn of an episode computes its prompt anew in any case.
        """
        answer = await self._call("POST", "/reset_prefix_cache?reset_running_requests=true", timeout)
        with _reading(answer):
            done = answer.json()["success"]
        if not done:
            raise ControlError(f"{self.url}/reset_prefix_cache: the server kept its prefix cache")

    async def logprobs(self, ids: np.ndarray, timeout: float) -> np.ndarray:
        """float32 [T - 1]: log-probability of each of ``ids[1:]`` (int [T]) after those before it, temperature 1."""
        body = {
            "token_ids": ids.tolist(),
            # Before whatever waits: engines hold tokens back until the weights are proven.
            "priority": -1,
            "sampling_params": {"max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0, "logprobs": 0,
                                "detokenize": False},
        }  # fmt: skip
        answer = await self._call("POST", "/inference/v1/generate", timeout, json=body)
        with _reading(answer):
            entries = answer.json()["prompt_logprobs"][1:]
            return np.array([entry[str(id)]["logprob"] for id, entry in zip(ids[1:], entries, strict=True)], np.float32)

    async def _call(self, method: str, path: str, timeout: float, json: Any = None) -> httpx.Response:
        try:
            answer = await self._client.request(method, self.url + path, timeout=timeout, json=json)
        except httpx.TimeoutException as error:
            raise ControlError(f"{self.url}{path} did not answer within {timeout:g} s") from error
        except httpx.RequestError as error:
            raise ControlError(f"{self.url}{path}: {error or type(error).__name__}") from error
        if answer.status_code != 200:
            hint = " (start the server with VLLM_SERVER_DEV_MODE=1)" if answer.status_code == 404 else ""
            hint = " (start the server with --enable-scale-out)" if answer.status_code == 403 else hint
            raise ControlError(f"{self.url}{path} answered {answer.status_code}{hint}: {answer.text[:500]}")
        return answer


@contextmanager
def _reading(answer: httpx.Response) -> Iterator[None]:
    """Around whatever takes ``answer`` for what a vLLM server says."""
    try:
        yield
    except (ValueError, LookupError, TypeError) as error:
        said = f"{type(error).__name__}: {error}"
        raise ControlError(f"{answer.url} is no vLLM server's answer ({said}): {answer.text[:200]}") from error
