"""How often, and how soon, one sample runs again.

Invariant: errors of one kind spend a budget of that kind alone, so a user model that stumbles costs nothing of what
a sample may still lose to an actor. What an outage does to a sample is the outage's, and spends nothing. A pause that
a service asks for has a bound, so that a sample comes back and sees an outage that has lasted too long. Pure.
"""

from __future__ import annotations

from collections import Counter

from protocol.config import Retries
from rollout_engine.errors import EpisodeSystemError


class RetryBudget:
    """What one sample may still lose."""

    def __init__(self, retries: Retries):
        self._retries = retries
        self._spent: Counter[str] = Counter()

    def after(self, error: EpisodeSystemError, excused: bool = False) -> float | None:
        """Seconds to wait before the sample runs again; None: its budget for that kind is spent.

        ``excused``: the error belongs to an outage. A service that asked for a longer pause gets it,
        up to ``max_retry_after``.
        """
        retry, spent = self._retries.of(error.kind), self._spent[error.kind]
        if not excused:
            if spent >= retry.times:
                return None
            self._spent[error.kind] += 1
        backoff = min(retry.backoff * 2.0 ** min(spent, 64), retry.max_backoff)
        return max(backoff, min(error.retry_after or 0.0, self._retries.max_retry_after))
