"""Text to ids and back, with text from outside kept harmless.

Invariant: a control token (a turn marker, a think, tool-call or tool-response tag) is written only by
the template or sampled by the policy. Where the text of a message spells one, that text is encoded as
ordinary text: it is cut inside the would-be token and the two sides are encoded apart. The decoded text
is the same, the control id is not there. Text without such a spelling gets the ids that it has as a whole, as on any
server.

The beginning of a text, up to the first special token of the template's own after some hundred characters, is encoded
apart and kept: it is tools and system prompt, the same for many episodes. The tokenizer itself reads what stands before
a special token and what stands after it apart, so the ids are the same.

Control tokens are the tokenizer's special tokens, its other added tokens that hold a tag ``<…>``, and
words of its vocabulary that hold a tag of the call syntax. Other added tokens (whole words of a small
vocabulary) are ordinary text.
"""

from __future__ import annotations

import itertools
import re
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from tokenizers import Encoding, Tokenizer

from rollout_engine.errors import EpisodeSystemError

_TAG = re.compile(r"<[^<>\s][^<>]*>")
_SYNTAX = re.compile(r"</?(?:think|tool_call|tool_response|function|parameter)(?:=[^<>]*)?>")

_LONG = 512
"""Characters from which on the beginning of a text is worth keeping."""
_BEGINNINGS = 128
"""Beginnings kept, the last used: one a domain and list of tools."""

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
        self._pattern = _anywhere(self.control)
        self._dividers = _dividers(tokenizer)
        self._beginnings: OrderedDict[tuple[str, tuple[tuple[int, int], ...]], list[int]] = OrderedDict()

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
        cut = self._end_of_beginning(text, foreign)
        if cut is None:
            return self._encode(text, foreign)
        # Spans are in order, and none holds the cut.
        before = tuple(span for span in foreign if span[0] < cut)
        after = [(low - cut, high - cut) for low, high in foreign[len(before) :]]
        return self._beginning(text[:cut], before) + self._encode(text[cut:], after)

    def _end_of_beginning(self, text: str, foreign: Sequence[tuple[int, int]]) -> int | None:
        for match in self._dividers.finditer(text, _LONG):
            start, end = match.span()
            if not any(low < end and start < high for low, high in foreign):
                return start
        return None

    def _beginning(self, text: str, foreign: tuple[tuple[int, int], ...]) -> list[int]:
        key = (text, foreign)
        if key in self._beginnings:
            self._beginnings.move_to_end(key)
        else:
            self._beginnings[key] = self._encode(text, foreign)
            if len(self._beginnings) > _BEGINNINGS:
                self._beginnings.popitem(last=False)
        return self._beginnings[key].copy()

    def _encode(self, text: str, foreign: Sequence[tuple[int, int]]) -> list[int]:
        cuts = {0, len(text)}
        for match in self._pattern.finditer(text):
            start, end = match.span(1)
            inside = [low for low, high in foreign if low < end and start < high]
            if inside:
                cuts.add(max(start + 1, inside[0]))
        ids: list[int] = []
        for low, high in itertools.pairwise(sorted(cuts)):
            encoding = self._tokenizer.encode(text[low:high], add_special_tokens=False)
            self._refuse_foreign(encoding, low, foreign)
            ids.extend(encoding.ids)
        return ids

    def _refuse_foreign(self, encoding: Encoding, at: int, foreign: Sequence[tuple[int, int]]) -> None:
        control = [place for place, token in enumerate(encoding.ids) if token in self._control_ids]
        if not control or not foreign:
            return
        offsets = encoding.offsets
        for place in control:
            start, end = offsets[place]
            if any(low < at + end and at + start < high for low, high in foreign):
                raise RenderingError("a message spells a control token that the tokenizer can't write as ordinary text")


def _anywhere(spelled: Iterable[str]) -> re.Pattern[str]:
    """Finds each place where one of ``spelled`` begins, the longest first, as group 1.

    Overlaps are found too: other added tokens may shift where the tokenizer matches.
    """
    longest_first = sorted(spelled, key=len, reverse=True)
    if not longest_first:
        return re.compile("(?!)()")
    initials = "".join(sorted({text[0] for text in longest_first}))
    return re.compile(f"(?=[{re.escape(initials)}])(?=({'|'.join(map(re.escape, longest_first))}))")


def _dividers(tokenizer: Tokenizer) -> re.Pattern[str]:
    """Finds special tokens at which the tokenizer divides any text: nothing around them changes how they are read."""
    added = list(tokenizer.get_added_tokens_decoder().values())
    dividers = []
    for token in added:
        if token.special and not (token.normalized or token.lstrip or token.rstrip or token.single_word):
            text = token.content
            beginnings = tuple(text[:end] for end in range(1, len(text) + 1))
            others = (other.content for other in added if other.content != text)
            # What ends with a beginning of this one, or holds it, may be read in its place.
            if not any(other.endswith(beginnings) or text in other for other in others):
                dividers.append(text)
    return re.compile("|".join(map(re.escape, dividers)) or "(?!)")


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
        if entry.special or _TAG.search(entry.content):
            control[entry.content] = token
    for word, token in tokenizer.get_vocab(with_added_tokens=False).items():
        if "<" in word and token not in added and _SYNTAX.search(text := tokenizer.decode([token], False)):
            control[text] = token
    return control
