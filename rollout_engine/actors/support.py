"""What each token was sampled from, by the candidates that a server names with it.

Invariant: a support holds the sampled id and at most ``top_k`` ids, and log-probabilities are of the distribution over
it. vLLM names the ``top_k`` likeliest after truncation, those that top-p left out with a placeholder. Where logits tie
at the last place, some of its samplers keep all of the tied, which may be more than it names; then the distribution is
taken over those that it named. So is the learner's (``learner/truncated.py``): the ratio is between like and like.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

MISSING = -9998.0
"""vLLM writes -9999 for a log-probability that it doesn't have, or that is -inf."""


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """A token that is among the likeliest."""

    token_id: int
    logprob: float


def read_support(
    ids: Sequence[int], logprobs: Sequence[float], candidates: Iterable[Sequence[Candidate]], top_k: int
) -> tuple[list[list[int]], list[float]]:
    """The support of each of ``ids``, the sampled id first, and its log-probability over that support.

    ``candidates``: of each, likeliest first. Raises ``ValueError`` where those of one are missing.
    """
    supports, over = [], []
    for id, logprob, named in zip(ids, logprobs, candidates, strict=True):
        there = [c for c in named if c.logprob > MISSING]
        others = [c for c in there if c.token_id != id]
        if len(others) == len(there):
            raise ValueError(f"no candidates with token {id}")
        del others[top_k - 1 :]
        supports.append([id, *(c.token_id for c in others)])
        # Fewer than it may be: they are all there are, and what the server says is of them already.
        whole = len(others) + 1 < top_k
        over.append(logprob if whole else logprob - math.log(math.exp(logprob) + sum(map(_probability, others))))
    return supports, over


def _probability(candidate: Candidate) -> float:
    return math.exp(candidate.logprob)
