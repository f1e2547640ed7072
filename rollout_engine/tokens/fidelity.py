"""Is a recorded token stream what the template would have written? (rules 6 and 7)

Invariant: the check needs only what is on the log, the messages and the token arrays, and knows nothing of how
the stream was built. Each run of sampled ids stands for one assistant turn as it was sampled, reasoning included;
everything around them must be what one rendering of the whole conversation writes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from protocol.records import Message, Trajectory
from rollout_engine.tokens.encoding import RenderingError
from rollout_engine.tokens.messages import template_message
from rollout_engine.tokens.template import ChatTemplate
from rollout_engine.tokens.toolset import ToolSet, prepare


def stream_problems(
    template: ChatTemplate, tools: ToolSet, messages: Sequence[Message], ids: Sequence[int], turns: Sequence[list[int]]
) -> list[str]:
    """Differences between the text of ``ids`` and the template's; empty when there is none.

    ``turns`` holds the sampled ids of each assistant message, in order.
    """
    sampled = [message.role == "assistant" and not message.injected for message in messages]
    chat = [{"role": "assistant"} if turn else template_message(m) for m, turn in zip(messages, sampled, strict=True)]
    said = sum(sampled)
    if said != len(turns):
        return [f"{said} assistant messages, but {len(turns)} runs of sampled tokens"]
    try:
        pieces = template.rendering.expected(chat, tools.listed)
    except RenderingError as error:
        return [str(error)]
    expected = template.normalise(pieces[0])
    for piece, turn in zip(pieces[1:], turns, strict=True):
        closed = bool(turn) and turn[-1] == template.close_id
        expected += template.decode(turn[:-1] if closed else turn)
        # The last turn's own closing token is in the stream although nothing follows it.
        expected += template.normalise(piece) or (template.decode(turn[-1:]) if closed else "")
    actual = template.decode(ids)
    if actual == expected:
        return []
    at = len(os.path.commonprefix([actual, expected]))
    return [
        f"the stream's text differs from the template's at character {at}: "
        f"{actual[at : at + 40]!r} in the stream, {expected[at : at + 40]!r} by the template"
    ]


def trajectory_problems(
    template: ChatTemplate, tools: Sequence[Mapping[str, Any]] | ToolSet, trajectory: Trajectory
) -> list[str]:
    """Problems of a recorded trajectory, whose token arrays must be there."""
    tokens = trajectory.tokens.unpack()
    edges = np.flatnonzero(np.diff(tokens.mask.astype(np.int8), prepend=0, append=0))
    turns = [tokens.ids[start:end].tolist() for start, end in edges.reshape(-1, 2)]
    return stream_problems(template, prepare(tools), trajectory.messages, tokens.ids.tolist(), turns)
