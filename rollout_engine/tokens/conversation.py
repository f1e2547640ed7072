"""One episode's conversation, kept as messages and as an append-only token stream.

Invariant (rules 6 and 7): the next prompt is the previous prompt + the sampled ids + the observation's
ids. Sampled ids are never decoded and encoded again; an observation is encoded once; and the text of
the stream is what the template writes for the same conversation, with every turn as it was sampled.
A turn that its cap cut is closed by an observation (mask 0).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from protocol.records import Message, TokenArrays
from rollout_engine.actors.policy import Generation
from rollout_engine.tokens.encoding import RenderingError
from rollout_engine.tokens.fidelity import stream_problems
from rollout_engine.tokens.ids import Ids
from rollout_engine.tokens.interpretation import interpret
from rollout_engine.tokens.messages import template_message
from rollout_engine.tokens.stream import TokenStream
from rollout_engine.tokens.template import ChatTemplate
from rollout_engine.tokens.toolset import ToolSet, prepare


class Conversation:
    """Alternates :meth:`observe` and :meth:`add_generation`, starting with ``observe``.

    ``system`` is the system prompt ("" for none); system messages at the head of the first observation
    are merged into it, a blank line between, since templates take one system message at most. ``tools``
    are as an MCP server lists them.
    """

    def __init__(self, template: ChatTemplate, system: str, tools: Sequence[Mapping[str, Any]] | ToolSet = ()) -> None:
        self._template = template
        self._system = system
        self._toolset = prepare(tools)
        template.check_tools(self._toolset.text)
        self._stream = TokenStream()
        self._messages: list[Message] = []
        self._turns: list[tuple[int, int]] = []
        """Where each sampled turn begins and ends in the stream."""
        self._awaits_generation = False

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple(self._messages)

    @property
    def prompt_ids(self) -> Ids:
        """The whole stream so far; after :meth:`observe` it is the next request's prompt. Nothing is copied."""
        return self._stream.ids

    @property
    def token_count(self) -> int:
        """Length of the whole stream."""
        return len(self._stream)

    @property
    def sampled_tokens(self) -> int:
        return self._stream.sampled

    @property
    def learnt_tokens(self) -> int:
        """Length of the stream up to its last sampled token."""
        return self._stream.learnt

    def observe(self, *messages: Message) -> None:
        """Append user, tool and injected assistant messages, and the generation prompt.

        What arrives between two generations is observed in one call, because templates group the results
        of one turn. Raises ``ValueError`` on a wrong order or role, and
        :class:`~rollout_engine.tokens.encoding.RenderingError` when the template can't write the messages.
        """
        if self._awaits_generation:
            raise ValueError("observe everything between two generations in one call: a prompt is open already")
        if not self._messages:
            messages = self._merge_system(messages)
        start = 1 if messages and messages[0].role == "system" else 0
        if not messages[start:] or not all(m.role in ("user", "tool") or m.injected for m in messages[start:]):
            raise ValueError(
                f"an observation is user or tool messages, or injected ones, not {[m.role for m in messages]}"
            )
        for call in (call for message in messages for call in message.calls):
            self._template.check_tools(json.dumps(call.arguments, ensure_ascii=False))
        chat = [template_message(message) for message in messages]
        rendering = self._template.rendering
        if not self._turns:
            segments = rendering.prompt(chat, self._toolset.listed)
        else:
            segments = rendering.delta(chat)
        ids = self._template.encode_segments(segments)
        if self._ends_closed():
            if ids[0] != self._template.close_id:
                raise RenderingError("the delta doesn't begin with the token that closes a turn")
            del ids[0]  # the policy sampled it
        self._stream.observe(ids)
        self._messages.extend(messages)
        self._awaits_generation = True

    def add_generation(self, generation: Generation) -> Message:
        """Append a sampled turn and return it as interpreted; raises ``ValueError`` without an open prompt."""
        if not self._awaits_generation:
            raise ValueError("a generation needs an observation before it")
        ids, start = generation.ids, len(self._stream)
        self._stream.sample(ids, generation.logprobs, generation.versions, generation.support)
        self._turns.append((start, len(self._stream)))
        self._awaits_generation = False
        text = self._template.decode(ids[:-1] if ids and ids[-1] in self._template.stop_ids else ids)
        read = interpret(text, self._toolset, self._template.reasoning_open)
        message = Message("assistant", read.content, read.reasoning, read.calls)
        self._messages.append(message)
        return message

    def arrays(self) -> TokenArrays:
        return self._stream.arrays()

    def verify(self) -> list[str]:
        """Problems of the stream against one rendering of the whole conversation; empty when there is none."""
        turns = [self._stream.slice(start, end) for start, end in self._turns]
        ids = self._stream.ids.tolist()
        return stream_problems(self._template, self._toolset, self._messages, ids, turns)

    def _ends_closed(self) -> bool:
        """Whether the last sampled turn ended with the token that closes a turn."""
        start, end = self._turns[-1] if self._turns else (0, 0)
        return start < end and self._stream.slice(end - 1, end) == [self._template.close_id]

    def _merge_system(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        rest = list(messages)
        parts = [self._system] if self._system else []
        while rest and rest[0].role == "system":
            parts.append(rest.pop(0).content)
        return (Message("system", "\n\n".join(parts)), *rest) if parts else tuple(rest)
