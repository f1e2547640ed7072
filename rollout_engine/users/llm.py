"""A simulated user behind an OpenAI-compatible chat endpoint.

Invariant: one stateless call a reply. The model sees the rules, its private context and the visible
transcript, never a tool call or result; what it returns is cleaned into plain words or into the end of
the conversation. A model that can't be reached, refuses, or answers nonsense is a UserError after bounded
retries: it is never the policy's fault.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import httpx

from protocol.config import UserModel
from protocol.records import Message, ModelCall
from rollout_engine.chat_endpoint import ChatEndpoint
from rollout_engine.environments.task import Task
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

_LABEL = re.compile(r"^(?:\*\*)?(?:user|customer)(?:\*\*)?\s*:(?:\*\*)?\s*", re.IGNORECASE)
_THINKING = re.compile(r"^.*</think>|<think>.*$", re.DOTALL)
_AGENT = re.compile(r"^(?:\*\*)?(?:agent|assistant)(?:\*\*)?\s*:.*", re.IGNORECASE | re.MULTILINE | re.DOTALL)
_QUOTES = {'"': '"', "'": "'", "“": "”", "‘": "’", "`": "`"}


class LlmUser:
    """The customer of one task. ``client`` is shared, and not closed.

    Raises :class:`protocol.config.ConfigError` when the key's environment variable is named but not set.
    """

    def __init__(self, task: Task, config: UserModel, client: httpx.AsyncClient) -> None:
        self._context = private_context(task)
        self._model = ChatEndpoint(config, client, "user")

    @property
    def calls(self) -> Sequence[ModelCall]:
        """What has been asked of the model."""
        return self._model.calls

    async def reply(self, messages: Sequence[Message]) -> str | None:
        return clean(await self._model.complete(prompt(self._context, messages)))


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
