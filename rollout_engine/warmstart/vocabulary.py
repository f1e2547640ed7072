"""The tiny policy's tokenizer: every byte is a token, and so is every phrase that recurs.

Invariant: decode(encode(text)) == text for any text, because each byte has a token of its own. On top of
them, the fixed strings of the domains (policy lines, the tools block, call syntax, JSON keys, words) are
one token each, so that an episode is a few hundred tokens; digits and upper-case letters stay single
tokens, because ids and amounts must be copied piece by piece.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
PAD = "<|pad|>"

_PHRASE = re.compile(
    r"""
    <tool_call>\n<function=\w+>\n(?:<parameter=\w+>\n)?                  # a call opens
  | \n</parameter>\n(?:<parameter=\w+>\n | </function>\n</tool_call>)  # one value ends, the next begins
  | (?:user)?\n<tool_response>\n | \n</tool_response>
  | ["\]\}]*,?[\[\{]*"\w+":["\[\{]*      # up to the value of a JSON key
  | ["\]\}]+                             # the end of JSON
  | [ ]?[a-z_]+                          # a word
  | [ ][.,?!]
    """,
    re.VERBOSE,
)


def phrases(texts: Iterable[str], at_least: int, copied: Collection[str] = ()) -> list[str]:
    """Recurring phrases of ``texts`` that occur ``at_least`` times, the most frequent first.

    Words in ``copied`` get no token of their own with the blank before them: what is read and what is written must
    be the same token, or passing it on is a translation to learn word by word.
    """
    counts = Counter(phrase for text in texts for phrase in _PHRASE.findall(text) if len(phrase) > 1)
    blanked = {" " + word for word in copied}
    return [phrase for phrase, count in counts.most_common() if count >= at_least and phrase not in blanked]


def build_tokenizer(lines: Sequence[str], recurring: Sequence[str]) -> Tokenizer:
    """A tokenizer in which each of ``lines`` and ``recurring`` is one token, beside the 256 bytes.

    Of several phrases that match at one place the longest wins.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: id for id, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in (PAD, TURN_START, TURN_END)])
    wanted = dict.fromkeys(["system\n", "user\n", "assistant\n", *lines, *recurring])
    tokenizer.add_tokens([AddedToken(phrase, normalized=False) for phrase in wanted if len(phrase) > 1])
    return tokenizer
