"""Okapi BM25 over the few documents of one collection.

Invariant: the order depends on the texts, their order of arrival and the query alone; nothing is random, learnt, or
remembered between queries. A text is analysed once, when it is first searched, however many collections hold it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from weakref import WeakValueDictionary

RANKING = "endstate-bm25, not Typesense's"
"""What every result that rests on this ranking must say."""
SATURATION, LENGTH = 1.2, 0.75
"""k1 and b of Robertson et al., Okapi at TREC-3 (1994), at their customary values."""
_WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """Case-folded words. A plural's or a verb's final s is dropped, so that "refunds" finds "refund"."""
    return [word[:-1] if len(word) > 3 and word[-1] == "s" != word[-2] else word for word in _words(text)]


def _words(text: str) -> Iterable[str]:
    return _WORD.findall(text.casefold())


class Text:
    """An immutable text and, once it is searched, the counts of its words. Equal texts are one object: `Text.of`."""

    _known: WeakValueDictionary[str, Text] = WeakValueDictionary()

    def __init__(self, value: str):
        self.value = value

    @classmethod
    def of(cls, value: str) -> Text:
        text = cls._known.get(value)
        if text is None:
            text = cls._known[value] = cls(value)
        return text

    @cached_property
    def counts(self) -> Counter[str]:
        return Counter(words(self.value))

    @cached_property
    def length(self) -> int:
        return self.counts.total()


def bm25(query: str, texts: Sequence[Text]) -> list[float]:
    """The score of each text, 0 where it has no word of the query. Repeated words of the query count once."""
    if not texts:
        return []
    mean = sum(text.length for text in texts) / len(texts) or 1.0
    scores = [0.0] * len(texts)
    for word in sorted(set(words(query))):
        having = [(index, text) for index, text in enumerate(texts) if word in text.counts]
        weight = math.log(1 + (len(texts) - len(having) + 0.5) / (len(having) + 0.5))
        for index, text in having:
            count = text.counts[word]
            scale = SATURATION * (1 - LENGTH + LENGTH * text.length / mean)
            scores[index] += weight * count * (SATURATION + 1) / (count + scale)
    return scores
