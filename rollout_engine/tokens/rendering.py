"""What a chat template writes, taken apart at the turns that were sampled.

Invariant (rule 7): prompt + sampled + delta + sampled + … is what the template writes for the whole
conversation. An assistant turn is rendered as a sentinel, so its text never passes through the template
and its reasoning stays as sampled; a delta is what the template writes after the last sentinel, taken
from a short fixed anchor, so its cost is that of the new messages only. Whether a template keeps to this
(it may count turns, drop old messages, move the tools about) is checked when it is loaded, and again
over a whole episode by :meth:`Rendering.expected`.

Text that comes from messages is told apart from the template's own by rendering the same roles with
placeholders once, and laying the two texts side by side.
"""

from __future__ import annotations

import json
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from rollout_engine.errors import ConfigurationError
from rollout_engine.tokens.encoding import RenderingError, Segment

Chat = Sequence[dict[str, Any]]
Render = Callable[[Chat, list[dict[str, Any]] | None, bool], str]

_PLACEHOLDER = re.compile("\ue000([0-9]+)\ue001")
_PROBE = 'Größe "B417" <b>\'s</b>\n\n{a: 1} ' * 20 + "\n"
_SHOWN = 40
_LAYOUTS = 256
"""Layouts kept: one a sequence of roles, so a run needs a few dozen."""


def placeholder(index: int, mark: str = "") -> str:
    """Private-use text that no tokenizer and no template knows."""
    return f"\ue000{mark}{index}\ue001"


class Rendering:
    """The text side of one template.

    ``generation_prompt``  what opens a turn to be sampled.
    ``close``              what the template writes after an assistant turn.
    """

    def __init__(self, render: Render, name: str) -> None:
        self._render = render
        self._name = name
        self._layouts: OrderedDict[Any, list[str | tuple[int, str]]] = OrderedDict()
        self._sentinel = placeholder(0, "s")
        self._anchor = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
        self._turn = {"role": "assistant", "content": self._sentinel}
        self.generation_prompt = self._find_generation_prompt()
        self.close, self._openings = self._find_turn()
        self._check()

    # What an episode needs

    def prompt(self, messages: Chat, tools: list[dict[str, Any]] | None) -> list[Segment]:
        """The first prompt, generation prompt included."""
        return self._segments([], messages, tools)

    def delta(self, messages: Chat) -> list[Segment]:
        """What follows the text of a sampled turn: its close, the messages, the generation prompt.

        An assistant message among them, which wasn't sampled, is written as a turn of the past.
        """
        before, segments, chunk = [*self._anchor, self._turn], [], []
        for message in messages:
            if message["role"] != "assistant":
                chunk.append(message)
                continue
            *head, (prompt, _) = self._segments(before, chunk, None)
            opening = prompt.removesuffix(self.generation_prompt) + self._openings[-1]
            segments += [*head, (opening, False), (message["content"], True)]
            chunk = []
        return segments + self._segments(before, chunk, None)

    def expected(self, messages: Chat, tools: list[dict[str, Any]] | None) -> list[str]:
        """The text around each sampled turn, by one rendering of the whole conversation.

        ``messages`` holds the observed messages, and each sampled turn as ``{"role": "assistant"}`` alone.
        Returns n + 1 pieces for n sampled turns; the last piece is empty when a sampled turn ends the
        conversation. Raises :class:`RenderingError` when the template doesn't write each turn once.
        """
        mark = "s"
        while any(f"\ue000{mark}" in message.get("content", "") for message in messages):
            mark += "s"
        turns, injected, chat = [], {}, []
        for message in messages:
            # What the first prompt holds is written as it is; later turns are told apart by a mark each.
            if message["role"] == "assistant" and (turns or "content" not in message):
                if "content" in message:
                    injected[len(turns)] = message["content"]
                turns.append(placeholder(len(turns), mark))
                message = {"role": "assistant", "content": turns[-1]}
            chat.append(message)
        ends = bool(chat) and chat[-1]["role"] == "assistant"
        rest = self._render(chat, tools, not ends)
        pieces, past = [], ""
        for at, turn in enumerate(turns):
            piece, found, rest = rest.partition(turn)
            if not found:
                raise RenderingError(f"{self._name} doesn't write every assistant turn, in order")
            if at in injected:
                past += self._reopened(piece, self._openings[-1]) + injected[at]
            else:
                pieces.append(past + self._reopened(piece, self.generation_prompt))
                past = ""
        return [*pieces, past + ("" if ends else rest)]

    # How it is derived

    def _find_generation_prompt(self) -> str:
        closed, opened = self._try(self._anchor, False), self._try(self._anchor, True)
        if not opened.startswith(closed) or opened == closed:
            raise self._refused("it has no generation prompt that only adds to the conversation")
        return opened[len(closed) :]

    def _find_turn(self) -> tuple[str, tuple[str, ...]]:
        """Text after an assistant turn, and every text with which the template opens one in the past."""
        before = self._try(self._anchor, False)
        last = self._try([*self._anchor, self._turn], False)
        openings, closes = {}, []
        for more in ([], [{"role": "user", "content": "c"}], [{"role": "tool", "content": "c"}]):
            text = self._try([*self._anchor, self._turn, *more], False)
            opening, found, after = text.removeprefix(before).partition(self._sentinel)
            if not text.startswith(before) or not found or self._sentinel in after:
                raise self._refused("it doesn't write an assistant turn once, after what came before")
            openings[opening] = None
            closes.append(after)
        close = last.rpartition(self._sentinel)[2]
        if not all(after.startswith(close) for after in closes):
            raise self._refused("what closes an assistant turn depends on what follows")
        return close, tuple(sorted(openings, key=len, reverse=True))

    def _reopened(self, piece: str, wanted: str) -> str:
        """A piece of the past with its turn opened as it is in the stream."""
        for opening in self._openings:
            if piece.endswith(opening):
                return piece[: len(piece) - len(opening)] + wanted
        raise RenderingError(f"{self._name} opens an assistant turn in a way it doesn't elsewhere: …{piece[-80:]!r}")

    def _check(self) -> None:
        """Refuse a template whose deltas aren't what it writes for the whole conversation."""
        tool = {"name": "look", "description": "d", "parameters": {"type": "object", "properties": {}}}
        user, result, turn = {"role": "user"}, {"role": "tool", "name": "look"}, {"role": "assistant"}
        script = [[user], [result], [user], [result, result], [result], [result, user], [user], [user]]
        for tools in (None, [{"type": "function", "function": tool}]):
            chat: list[dict[str, Any]] = [{"role": "system", "content": "s0"}]
            pieces: list[str] = []
            for step, roles in enumerate(script):
                new = [{**role, "content": f"{step}.{at} {_PROBE}"} for at, role in enumerate(roles)]
                try:
                    segments = self.delta(new) if step else self.prompt([*chat, *new], tools)
                    chat += new
                    pieces.append("".join(text for text, _ in segments))
                    whole = self.expected(chat, tools)
                except RenderingError as error:
                    raise self._refused(str(error)) from error
                if whole != pieces:
                    raise self._refused(
                        f"after {len(pieces)} turns it writes {_difference(whole, pieces)} before; an append-only "
                        "stream needs a template that never rewrites what it has written"
                    )
                chat.append(turn)

    def _try(self, chat: Chat, generation_prompt: bool) -> str:
        try:
            return self._render(chat, None, generation_prompt)
        except RenderingError as error:
            raise self._refused(str(error)) from error

    def _refused(self, why: str) -> ConfigurationError:
        return ConfigurationError(f"the chat template of {self._name} can't be used: {why}")

    def _segments(self, before: Chat, messages: Chat, tools: list[dict[str, Any]] | None) -> list[Segment]:
        fields = [(at, key) for at, message in enumerate(messages) for key in ("content", "name") if message.get(key)]
        layout = self._layout(before, messages, fields, tools)
        text = self._after(self._render([*before, *messages], tools, True), before)
        return self._aligned(text, layout, [messages[at][key] for at, key in fields])

    def _layout(self, before: Chat, messages: Chat, fields, tools) -> list[str]:
        """The template's own text around the placeholders of fields: [text, index, text, index, …, text]."""
        calls = [message["tool_calls"] for message in messages if "tool_calls" in message]
        key = (bool(before), tuple(m["role"] for m in messages), tuple(fields), json.dumps([tools, calls]))
        if key in self._layouts:
            self._layouts.move_to_end(key)
            return self._layouts[key]
        blank = [dict(message) for message in messages]
        for index, (at, field) in enumerate(fields):
            blank[at][field] = placeholder(index)
        layout = _PLACEHOLDER.split(self._after(self._render([*before, *blank], tools, True), before))
        self._layouts[key] = layout
        if len(self._layouts) > _LAYOUTS:
            self._layouts.popitem(last=False)
        return layout

    def _after(self, text: str, before: Chat) -> str:
        if not before:
            return text
        found = text.find(self._sentinel)
        if found < 0:
            raise RenderingError(f"{self._name} leaves out an assistant turn")
        return text[found + len(self._sentinel) :]

    def _aligned(self, text: str, layout: list[str], values: list[str]) -> list[Segment]:
        """``text`` cut along ``layout``; a template may write a value as it is, stripped, or as a JSON string."""
        at = len(layout[0])
        segments: list[Segment] = [(layout[0], False)]
        fits = text.startswith(layout[0])
        for index, literal in zip(layout[1::2], layout[2::2], strict=True):
            value = values[int(index)]
            for written in (value, value.strip(), json.dumps(value, ensure_ascii=False)[1:-1]):
                if text.startswith(written, at) and text.startswith(literal, at + len(written)):
                    break
            else:
                fits = False
                break
            segments += [(written, True), (literal, False)]
            at += len(written) + len(literal)
        if not fits or at != len(text):
            raise RenderingError(
                f"{self._name} rewrites the content of a message, so it can't be told from its own text"
            )
        return segments


def _difference(now: Sequence[str], then: Sequence[str]) -> str:
    a, b = "".join(now), "".join(then)
    at = len(os.path.commonprefix([a, b]))
    return f"{a[at : at + _SHOWN]!r} where it wrote {b[at : at + _SHOWN]!r}"
