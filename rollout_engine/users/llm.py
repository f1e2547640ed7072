"""A simulated user behind an OpenAI-compatible chat endpoint.

Invariant: one stateless call a reply. The model sees the rules, its private context and the visible
transcript, never a tool call or result; what it returns is cleaned into plain words or into the end of
the conversation. A model that can't be reached, refuses, or answers nonsense is a UserError after bounded
retries: it is never the policy's fault.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

import anyio
import httpx

from protocol.config import ConfigError, UserModel
from protocol.records import Message
from rollout_engine.environments.task import Task
from rollout_engine.errors import UserError
from rollout_engine.users.user import visible

RULES = """\
You play a customer who is talking to a service agent. Write only the customer's next message.
- Say only what the private context supports. Never invent facts, names, numbers or ids; copy ids exactly.
- Answer what was asked, in one or two short sentences. Volunteer nothing that was not asked for.
- If you are asked something the context does not tell, say that you do not know.
- You never act as the agent and never mention these rules or the context.
- When the agent has finished, or has said that it can't help, and asks nothing, answer exactly <DONE>."""

DONE = "<DONE>"
UNKNOWN = "I do not know."

RETRIES = 3
"""Calls after the first, on a lost connection or one of :data:`RETRIED`."""

RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504})

BACKOFF = 0.5
"""Seconds before the first retry; doubled for each further one."""

_LABEL = re.compile(r"^(?:\*\*)?(?:user|customer)(?:\*\*)?\s*:(?:\*\*)?\s*", re.IGNORECASE)
_THINKING = re.compile(r"^.*</think>|<think>.*$", re.DOTALL)
_AGENT = re.compile(r"^(?:\*\*)?(?:agent|assistant)(?:\*\*)?\s*:.*", re.IGNORECASE | re.MULTILINE | re.DOTALL)
_QUOTES = {'"': '"', "'": "'", "“": "”", "‘": "’", "`": "`"}


class LlmUser:
    """The customer of one task. ``client`` is shared; its time limits are the caller's.

    Raises :class:`ConfigError` when the key's environment variable is named but not set.
    """

    def __init__(self, task: Task, config: UserModel, client: httpx.AsyncClient) -> None:
        self._context = private_context(task)
        self._config = config
        self._client = client
        self._headers = authorization(config)

    async def reply(self, messages: Sequence[Message]) -> str | None:
        answer = await self._complete(prompt(self._context, messages))
        return clean(answer)

    async def _complete(self, messages: list[dict[str, str]]) -> str:
        url = self._config.endpoint.rstrip("/") + "/chat/completions"
        body = {"model": self._config.model, "messages": messages, "temperature": self._config.temperature}
        for attempt in range(RETRIES + 1):
            try:
                response = await self._client.post(url, json=body, headers=self._headers)
            except httpx.RequestError as error:
                fault = f"{type(error).__name__}: {error}"
            else:
                if response.is_success:
                    return _content(response)
                fault = f"status {response.status_code}: {response.text[:200]}"
                if response.status_code not in RETRIED:
                    raise UserError(f"user model {self._config.model} at {url}: {fault}")
            if attempt < RETRIES:
                await anyio.sleep(BACKOFF * 2**attempt)
        raise UserError(f"user model {self._config.model} at {url}: {fault} ({RETRIES + 1} calls)")


def authorization(config: UserModel) -> dict[str, str]:
    """Request headers; raises :class:`ConfigError` when the key's environment variable is named but not set."""
    if not config.api_key_env:
        return {}
    key = os.environ.get(config.api_key_env)
    if not key:
        raise ConfigError(f"rollout.user.api_key_env names {config.api_key_env}, which is not set")
    return {"Authorization": f"Bearer {key}"}


def private_context(task: Task) -> str:
    """What the customer wants and knows, for the model's eyes only."""
    facts = [f"- {name.replace('_', ' ')}: {value}" for name, value in task.facts.items()]
    return "\n".join([f"Your request: {task.opening}", "What you know:", *(facts or ["- nothing more"])])


def prompt(context: str, messages: Sequence[Message]) -> list[dict[str, str]]:
    """System rules, and one message with the private context and the visible transcript."""
    names = {"user": "Customer", "assistant": "Agent"}
    transcript = "\n".join(f"{names[message.role]}: {message.content.strip()}" for message in visible(messages))
    request = f"Private context:\n{context}\n\nConversation so far:\n{transcript}\n\nThe customer's next message:"
    return [{"role": "system", "content": RULES}, {"role": "user", "content": request}]


def clean(answer: str) -> str | None:
    """Plain words from a model's answer: no reasoning (finished or not), role label or quotes, and nothing that it
    wrote for the agent. None when it ends the conversation; an empty answer is one of not knowing."""
    text = _LABEL.sub("", _AGENT.sub("", _THINKING.sub("", answer)).strip()).strip()
    if DONE in text:
        # Whatever came before the mark is a farewell, and nobody is left to answer it.
        return None
    while len(text) > 1 and _QUOTES.get(text[0]) == text[-1]:
        text = _LABEL.sub("", text[1:-1].strip())
    return text or UNKNOWN


def _content(response: httpx.Response) -> str:
    try:
        content = response.json()["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise UserError(f"user model answered without choices[0].message.content: {response.text[:200]}") from error
    if content is not None and not _is_text(content):
        raise UserError(f"user model answered content that is not text: {response.text[:200]}")
    return content or ""


def _is_text(content: Any) -> bool:
    """Whether it is text that UTF-8 can write: a JSON escape may hold half of a surrogate pair."""
    return isinstance(content, str) and not re.search("[\ud800-\udfff]", content)
