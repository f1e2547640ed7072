"""A model behind an OpenAI-compatible chat endpoint: messages in, text out.

Invariant: a call returns the model's text or raises its boundary's system error; an answer that isn't one is never
taken for text. Each request has a bound, retries are bounded, and every answered call is recorded with its cost.
"""

from __future__ import annotations

import email.utils
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import anyio
import httpx

from protocol.config import ChatModel, ConfigError
from protocol.records import ModelCall
from rollout_engine.errors import EpisodeSystemError, JudgeError, UserError

RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504})

BACKOFF = 0.5
"""Seconds before the first retry; doubled for each further one."""

_BOUNDARIES: dict[str, tuple[type[EpisodeSystemError], str]] = {
    "user": (UserError, "rollout.user"),
    "judge": (JudgeError, "judge"),
}


class ChatEndpoint:
    """What one episode asks of a model. ``client`` is shared, and not closed.

    Raises :class:`ConfigError` when the key's environment variable is named but not set.
    """

    def __init__(self, config: ChatModel, client: httpx.AsyncClient, role: Literal["user", "judge"]) -> None:
        self.calls: list[ModelCall] = []
        """Answered calls, in order."""
        self._config = config
        self._client = client
        self._role = role
        self._error, section = _BOUNDARIES[role]
        self._headers = {"Content-Type": "application/json", **authorization(config, section)}
        self._url = config.endpoint.rstrip("/") + "/chat/completions"

    async def complete(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The model's answer, "" where it has no content; raises the boundary's system error."""
        config, started = self._config, anyio.current_time()
        body: dict[str, Any] = {"model": config.model, "messages": messages, "temperature": config.temperature}
        if config.max_tokens:
            body["max_completion_tokens"] = config.max_tokens
        answer = await self._post(json.dumps(body))  # in ASCII: a text may hold half a surrogate pair
        text, tokens = self._read(answer)
        seconds = round(anyio.current_time() - started, 6)
        self.calls.append(
            ModelCall(self._role, config.model, **tokens, seconds=seconds, cost=_cost(config, **tokens))
        )  # fmt: skip
        return text

    async def _post(self, body: str) -> httpx.Response:
        config = self._config
        for attempt in range(config.retries + 1):
            pause, asked = BACKOFF * 2**attempt, 0.0
            try:
                with anyio.fail_after(config.timeout):
                    response = await self._client.post(
                        self._url, content=body, headers=self._headers, timeout=config.timeout
                    )
            except httpx.RequestError as error:
                fault = f"{type(error).__name__}: {error}"
            except TimeoutError:
                fault = f"no answer within {config.timeout:g} s"
            else:
                if response.is_success:
                    return response
                fault = f"status {response.status_code}: {response.text[:200]}"
                asked = retry_after(response.headers.get("retry-after", ""))
                if response.status_code not in RETRIED:
                    raise self._failed(fault)
                if asked > config.max_retry_after:
                    raise self._failed(f"{fault}; it asks for a pause of {asked:g} s, above max_retry_after", asked)
                pause = max(pause, asked)
            if attempt < config.retries:
                await anyio.sleep(pause)
        raise self._failed(f"{fault} ({config.retries + 1} calls)", asked)

    def _failed(self, fault: str, asked: float = 0.0) -> EpisodeSystemError:
        error = self._error(f"{self._role} model {self._config.model} at {self._url}: {fault}")
        error.retry_after = asked or None
        return error

    def _read(self, response: httpx.Response) -> tuple[str, dict[str, int]]:
        """The text and the token counts of an answer."""
        try:
            answer = response.json()
            content = answer["choices"][0]["message"]["content"]
        except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
            fault = f"answered without choices[0].message.content: {response.text[:200]}"
            raise self._error(f"{self._role} model {fault}") from error
        if content is not None and not _is_text(content):
            raise self._error(f"{self._role} model answered content that is not text: {response.text[:200]}")
        return content or "", _tokens(answer)


def authorization(config: ChatModel, section: str) -> dict[str, str]:
    """Request headers; raises :class:`ConfigError` when the key's environment variable is named but not set."""
    if not config.api_key_env:
        return {}
    key = os.environ.get(config.api_key_env)
    if not key:
        raise ConfigError(f"{section}.api_key_env names {config.api_key_env}, which is not set")
    return {"Authorization": f"Bearer {key}"}


def retry_after(header: str) -> float:
    """Seconds that a ``Retry-After`` header, seconds or a date, asks for; 0 for none or for one that isn't either."""
    if re.fullmatch(r"\s*\d+(\.\d+)?\s*", header):
        return float(header)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(header).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return 0.0


def _tokens(answer: Any) -> dict[str, int]:
    usage = answer.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    details = usage.get("prompt_tokens_details")
    counts = {
        "prompt_tokens": usage.get("prompt_tokens"),
        "completion_tokens": usage.get("completion_tokens"),
        "cached_tokens": details.get("cached_tokens") if isinstance(details, dict) else 0,
    }
    return {name: count if type(count) is int and count > 0 else 0 for name, count in counts.items()}


def _cost(config: ChatModel, prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> float:
    price = config.price
    fresh = max(0, prompt_tokens - cached_tokens)
    return (fresh * price.prompt + cached_tokens * price.cached + completion_tokens * price.completion) / 1e6


def _is_text(content: Any) -> bool:
    """Whether it is text that UTF-8 can write: a JSON escape may hold half of a surrogate pair."""
    return isinstance(content, str) and not re.search("[\ud800-\udfff]", content)
