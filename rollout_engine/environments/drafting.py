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
from rollout_engine.environments.families import Draft, Draw
from rollout_engine.environments.task import Say, Slip, Turn
from rollout_engine.environments.texts import DENIED, DONE, ESCALATED, QUESTIONS, REFUNDED


@dataclass(frozen=True)
class Plan:
    """What is done after reading."""

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


class Case:
    """The record that a task is about, as the rows that hold it and the calls that act on it.

    A domain's subclass fills ``rows`` and sets ``subject`` (the record's id), ``payments`` and ``ticket``.
    """

    id_fact: str
    """The fact and parameter that names the record: ``booking_id``."""
    read_tool: str

    subject: str
    payments: list[str]
    ticket: str
    rows: dict[str, list[dict[str, Any]]]

    def __init__(self, draw: Draw) -> None:
        self._draw = draw

    def act(self, name: str, **arguments: Any) -> ToolCall:
        """A call whose first parameter is the record."""
        return ToolCall(name, {self.id_fact: self.subject, **arguments})

    def refund(self, amount: int, payment: int = 0) -> ToolCall:
        return ToolCall("refund", {"payment_id": self.payments[payment], "amount": amount})

    def close(self, resolution: str) -> ToolCall:
        return ToolCall("close_ticket", {"ticket_id": self.ticket, "resolution": resolution})

    def serve(self, *calls: ToolCall) -> Plan:
        """Do it and close the ticket as resolved."""
        return Plan(*calls, self.close("resolved"))

    def deny(self, *calls: ToolCall) -> Plan:
        """Do that much and close the ticket as denied."""
        return Plan(*calls, self.close("denied"))

    def escalate(self, *calls: ToolCall) -> Plan:
        """Do that much and close the ticket as escalated."""
        return Plan(*calls, self.close("escalated"))

    def draft(
        self,
        openings: Sequence[str],
        right: Plan,
        main: tuple[str, Plan],
        others: Mapping[str, Plan] | None = None,
        facts: Mapping[str, str] | None = None,
        withhold: str = "",
    ) -> Draft:
        """A draft whose scripts ask for what the opening withholds, read, follow a plan and say its final
        message. ``withhold`` names the fact that a third of the openings leave out (the record's id unless
        said). A slip of forgetting the ticket is added to ``main`` and ``others``."""
        facts = {self.id_fact: self.subject, **(facts or {})}
        withheld = (withhold or self.id_fact,) if self._draw.one_in(1 / 3) else ()
        head: tuple[Turn, ...] = (*(Say(QUESTIONS[fact]) for fact in withheld), self.act(self.read_tool))

        def script(plan: Plan) -> tuple[Turn, ...]:
            return (*head, *plan.calls, Say(plan.final))

        plans = {**(others or {}), "forget_ticket": right.without("close_ticket")}
        slips = [Slip(main[0], script(main[1]), main=True)]
        slips += [Slip(name, script(plan)) for name, plan in plans.items()]
        nouns = {self.id_fact: self.id_fact.removesuffix("_id")}
        opening = opening_with(self._draw.pick(openings), facts, withheld, nouns)
        return Draft(self.rows, opening, facts, script(right), tuple(slips))
