"""What the engine asks of a simulated user.

Invariant: a user sees only what a customer would see of the conversation, the agent's words and its own;
tool calls and results stay out of sight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from protocol.records import Message, ModelCall


class User(Protocol):
    @property
    def calls(self) -> Sequence[ModelCall]:
        """What has been asked of the user's model, if it has one."""
        ...

    async def reply(self, messages: Sequence[Message]) -> str | None:
        """The answer to the agent's last message, or None to end the conversation.

        Raises :class:`rollout_engine.errors.UserError` when the user's model fails.
        """
        ...


def visible(messages: Sequence[Message]) -> list[Message]:
    """The user's and the agent's messages that have words."""
    return [message for message in messages if message.role in ("user", "assistant") and message.content.strip()]
