"""Text to ids and back, with text from outside kept harmless.

Invariant: a control token (a turn marker, a think, tool-call or tool-response tag) is written only by
the template or sampled by the policy. Where the text of a message spells one, that text is encoded as
ordinary text: it is cut after the first character of the would-be token and the two sides are encoded
apart. The decoded text is the same, the control id is not there.

Control tokens are the tokenizer's special tokens, its other added tokens of the form ``<…>``, and words
of its vocabulary that spell a tag of the call syntax. Other added tokens (whole words of a small
vocabulary) are ordinary text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tokenizers import Tokenizer

from rollout_engine.errors import EpisodeSystemError

_SYNTAX = re.compile(r"\s*</?(?:think|tool_call|tool_response|function|parameter)(?:=[^<>]*)?>\s*")

Segment = tuple[str, bool]
"""A piece of rendered text, and whether it comes from a message (True) or from the template (False)."""


class RenderingError(EpisodeSystemError):
    """The template or the tokenizer can't write a message that it was given."""

    kind = "template"


class Codec:
    """One tokenizer; ``control`` maps the text of each control token to its id, ``special`` lists the special ones."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.control = _control_tokens(tokenizer)
        self.special = tuple(entry.content for entry in tokenizer.get_added_tokens_decoder().values() if entry.special)
        self._control_ids = frozenset(self.control.values())
        spelled = sorted(self.control, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, spelled)) or r"(?!)")

    def encode(self, text: str) -> list[int]:
        """Ids of text in which control tokens are meant."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, control tokens included."""
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def normalise(self, text: str) -> str:
        """The text as the tokenizer reads it (Unicode normalisation)."""
        normaliser = self._tokenizer.normalizer
        return text if normaliser is None else normaliser.normalize_str(text)

    def is_control(self, token: int) -> bool:
        return token in self._control_ids

    def encode_segments(self, segments: Sequence[Segment]) -> list[int]:
        """Ids of rendered text in which only the template's segments may hold control tokens.

        Raises :class:`RenderingError` when the tokenizer gives a control id that the template didn't write.
        """
        text = "".join(piece for piece, _ in segments)
        foreign = _foreign(segments)
        cuts, meant, at = [0], 0, 0
        while match := self._pattern.search(text, at):
            start, end = match.span()
            if not any(low < end and start < high for low, high in foreign):
                meant, at = meant + 1, end
                continue
            at = start + 1
            cuts.append(at)
        ids: list[int] = []
        for low, high in zip(cuts, [*cuts[1:], len(text)], strict=True):
            ids.extend(self.encode(text[low:high]))
        if sum(token in self._control_ids for token in ids) > meant:
            raise RenderingError("a message spells a control token that the tokenizer can't write as ordinary text")
        return ids


def _foreign(segments: Sequence[Segment]) -> list[tuple[int, int]]:
    spans, at = [], 0
    for piece, outside in segments:
        if outside and piece:
            spans.append((at, at + len(piece)))
        at += len(piece)
    return spans


def _control_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    control = {}
    added = tokenizer.get_added_tokens_decoder()
    for token, entry in added.items():
        text = entry.content.strip()
        if entry.special or (text.startswith("<") and text.endswith(">")):
            control[entry.content] = token
    for word, token in tokenizer.get_vocab(with_added_tokens=False).items():
        if "<" in word and token not in added and _SYNTAX.fullmatch(text := tokenizer.decode([token], False)):
            control[text] = token
    return control
