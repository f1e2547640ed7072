"""What reliability costs: tokens of the whole campaign, over what it achieved.

Invariant: every token of every graded attempt is paid for, whether it passed or not; tokens of attempts
lost to system errors are not. An achievement that never happened has no price: None, not zero.
Prompt tokens count in full on every request, as if no prefix were cached.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rollout_engine.evaluation.metrics import TaskOutcome


class Cost(msgspec.Struct, frozen=True):
    """Tokens, and money at ``token_price`` a million tokens."""

    campaign_tokens: int
    tokens_per_success: float | None
    tokens_per_reliable_task: float | None
    """Campaign tokens over tasks of which every attempt passed."""
    campaign_cost: float
    cost_per_success: float | None
    cost_per_reliable_task: float | None


def campaign_cost(tasks: Sequence[TaskOutcome], token_price: float) -> Cost:
    """Cost of a campaign; ``token_price`` is that of a million tokens."""
    tokens = sum(outcome.tokens for outcome in tasks)
    per_success = _per(tokens, sum(outcome.passes for outcome in tasks))
    per_reliable = _per(tokens, sum(outcome.reliable for outcome in tasks))
    return Cost(
        campaign_tokens=tokens,
        tokens_per_success=per_success,
        tokens_per_reliable_task=per_reliable,
        campaign_cost=tokens * token_price / 1e6,
        cost_per_success=_price(per_success, token_price),
        cost_per_reliable_task=_price(per_reliable, token_price),
    )


def _per(tokens: int, count: int) -> float | None:
    return tokens / count if count else None


def _price(tokens: float | None, token_price: float) -> float | None:
    return None if tokens is None else tokens * token_price / 1e6
