"""Putting a draft together: opening, questions, the right plan and the slips.

Invariant: every script of a task asks the same questions and reads the same record first; the scripts
differ only in what is done after reading, so a slip is a wrong decision, never a lucky guess.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from protocol.records import ToolCall
from rollout_engine.environments.families import Draft
from rollout_engine.environments.task import Say, Slip, Turn
from rollout_engine.environments.texts import DENIED, DONE, ESCALATED, QUESTIONS, REFUNDED


@dataclass(frozen=True)
class Plan:
    """What is done after reading, and the final message."""

    calls: tuple[ToolCall, ...]

    def __init__(self, *calls: ToolCall) -> None:
        object.__setattr__(self, "calls", calls)

    @property
    def final(self) -> str:
        """The final message that fits what was done."""
        outcomes = [call.arguments["resolution"] for call in self.calls if call.name == "close_ticket"]
        if outcomes[-1:] == ["denied"]:
            return DENIED
        if outcomes[-1:] == ["escalated"]:
            return ESCALATED
        return REFUNDED if any(call.name == "refund" for call in self.calls) else DONE

    def without(self, name: str) -> Plan:
        """The same plan less every call of that tool."""
        return Plan(*(call for call in self.calls if call.name != name))

    def closing(self, resolution: str) -> Plan:
        """The same plan with another resolution of the ticket."""
        return Plan(
            *(
                ToolCall(call.name, {**call.arguments, "resolution": resolution})
                if call.name == "close_ticket"
                else call
                for call in self.calls
            )
        )


def opening_with(template: str, facts: Mapping[str, str], withheld: Sequence[str], nouns: Mapping[str, str]) -> str:
    """Fill an opening's ``{fact}`` slots. A told id reads "booking B417", a withheld one "my booking"; a part
    in brackets is left out when its fact is withheld."""
    words = {fact: f"{nouns[fact]} {value}" if fact in nouns else value for fact, value in facts.items()}
    for fact in withheld:
        template = re.sub(rf"\[[^\]]*{{{fact}}}[^\]]*\]", "", template)
        words[fact] = f"my {nouns[fact]}" if fact in nouns else ""
    return re.sub(r"[\[\]]", "", template).format(**words)


def draft(
    *,
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
    opening: str,
    facts: Mapping[str, str],
    withheld: Sequence[str],
    read: ToolCall,
    right: Plan,
    main: tuple[str, Plan],
    others: Mapping[str, Plan],
) -> Draft:
    """A draft whose scripts ask for what is withheld, read, follow a plan and say its final message."""
    head: tuple[Turn, ...] = (*(Say(QUESTIONS[fact]) for fact in withheld), read)

    def script(plan: Plan) -> tuple[Turn, ...]:
        return (*head, *plan.calls, Say(plan.final))

    slips = [Slip(main[0], script(main[1]), main=True)]
    slips += [Slip(name, script(plan)) for name, plan in others.items()]
    return Draft(rows, opening, facts, script(right), tuple(slips))
