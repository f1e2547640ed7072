"""A conversation as tests of this ecosystem read it, and their histories as ours.

Invariant: a message that goes in comes out under the same kind and words; ids of calls are numbered in order, so the
same conversation reads the same in every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from protocol.records import Message
from protocol.records import ToolCall as Call
from rollout_engine.environments.thinkingbox.dataset import (
    HistoryMessage,
    ParallelToolCall,
    Text,
    ToolCall,
    ToolResponse,
)
from rollout_engine.environments.thinkingbox.task import DONE
from rollout_engine.errors import ConfigurationError

Data = dict[str, Any]


def history_messages(history: Sequence[HistoryMessage]) -> list[Message]:
    """A recorded conversation for a prompt; reasoning is left out, as templates leave out that of the past.

    Raises :class:`ConfigurationError` for a system message, which templates take at the head only.
    """
    messages = []
    for item in history:
        match item:
            case Text(role="system"):
                raise ConfigurationError("a history can't hold a system message: chat templates take one, at the head")
            case Text(role="assistant", metadata={"tag": "think"}):
                pass
            case Text():
                messages.append(Message(item.role, item.content, injected=item.role == "assistant"))
            case ToolCall() | ParallelToolCall():
                calls = tuple(Call(call.name, call.arguments) for call in calls_of(item))
                messages.append(Message("assistant", calls=calls, injected=True))
            case ToolResponse():
                messages.append(Message("tool", item.content, name=item.name))
    return messages


def calls_of(item: HistoryMessage) -> tuple[ToolCall, ...]:
    """The calls of a recorded message."""
    if isinstance(item, ParallelToolCall):
        return item.tool_calls
    return (item,) if isinstance(item, ToolCall) else ()


def text(role: str, content: str, **metadata: Any) -> Data:
    return {"T": "Text", "role": role, "content": content, "metadata": metadata}


def context_data(
    opening: Sequence[Data],
    messages: Sequence[Message],
    ending: frozenset[str],
    effects: Any,
    init_result: Any,
    id: str,
) -> Data:
    """Fields of the TestContext. ``opening``: what came before the agent's first turn; ``messages``: the rest."""
    talk, pairs = list(opening), []
    waiting: list[Data] = []
    for message in messages:
        if message.role == "tool":
            call = waiting.pop(0)
            response = {"T": "ToolResponse", "name": call["name"], "content": message.content, "id": call["id"]}
            pairs.append({"tool_call": call, "tool_response": response})
            talk.append(response)
        elif message.role == "user":
            talk.append(text("user", message.content))
        elif message.injected:
            talk.append(text("assistant", message.content, tag="direct"))
        else:
            calls = _agents(message, len(pairs) + len(waiting), ending, talk)
            ends = [call for call in calls if call["metadata"].get("is_end_turn_tool")]
            for call in ends:  # none of the turn's calls is carried out, and these count as answered
                response = {"T": "ToolResponse", "name": call["name"], "content": "", "id": call["id"]}
                pairs.append({"tool_call": call, "tool_response": response})
            waiting += [] if ends else calls
    spoken = [m for m in talk if m["T"] == "Text" and m["role"] == "assistant"]
    return {
        "response": next((m["content"] for m in reversed(spoken) if "tag" not in m["metadata"]), ""),
        "tool_direct_responses": [m["content"] for m in spoken if m["metadata"].get("tag") == "direct"],
        "effects": effects,
        "tool_calls": pairs,
        "messages": talk,
        "init_result": init_result,
        "session_id": id,
    }


def history_data(history: Sequence[HistoryMessage]) -> list[Data]:
    """A recorded conversation as tests read it."""
    return [msgspec.to_builtins(item) for item in history]


def _agents(message: Message, number: int, ending: frozenset[str], talk: list[Data]) -> list[Data]:
    """Add what the agent did in one turn to ``talk``; the calls among it."""
    if message.reasoning:
        talk.append(text("assistant", message.reasoning, tag="think"))
    if message.content:
        done = {"is_done": True} if message.content.strip().endswith(DONE) else {}
        talk.append(text("assistant", message.content, **done))
    if not message.calls:
        return []
    calls = [
        {
            "T": "ToolCall",
            "name": call.name,
            "arguments": call.arguments or {},
            "id": f"call_{number + at}",
            "metadata": ({"error": call.error} if call.error else {})
            | ({"is_end_turn_tool": True} if call.name in ending else {}),
        }
        for at, call in enumerate(message.calls)
    ]
    ends = any(call.name in ending for call in message.calls)
    talk.append({"T": "ParallelToolCall", "tool_calls": calls, "metadata": {"is_end_turn_tool": True} if ends else {}})
    return calls
