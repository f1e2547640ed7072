"""What the models beside the policy used: the simulated user's and the judge's.

Invariant: sums of what was recorded a call. Attempts lost to system errors have no row and count nowhere, as with the
policy's tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from protocol.records import ModelCall


class ModelUsage(msgspec.Struct, frozen=True):
    """Calls of one role, added up."""

    calls: int = 0
    prompt_tokens: int = 0
    """Cached ones included."""
    cached_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    cost: float = 0.0

    def __add__(self, other: ModelUsage) -> ModelUsage:
        return ModelUsage(*(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__))


def usage_of(calls: Iterable[ModelCall]) -> dict[str, ModelUsage]:
    """Usage by role of one attempt's calls."""
    return total(
        {
            call.role: ModelUsage(
                1, call.prompt_tokens, call.cached_tokens, call.completion_tokens, call.seconds, call.cost
            )
        }
        for call in calls
    )


def total(usages: Iterable[Mapping[str, ModelUsage]]) -> dict[str, ModelUsage]:
    """Usage by role of many attempts, roles in alphabetical order."""
    added: dict[str, ModelUsage] = {}
    for usage in usages:
        for role, used in usage.items():
            added[role] = added.get(role, ModelUsage()) + used
    return dict(sorted(added.items()))
