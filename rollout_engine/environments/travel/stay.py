"""A guest's stay as rows and as calls: what travel's generators build their tasks of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from protocol.records import ToolCall
from rollout_engine.environments.drafting import Plan, draft, opening_with
from rollout_engine.environments.families import GUEST_NAMES, Draft, Draw
from rollout_engine.environments.travel.schema import ROOMS
from rollout_engine.environments.travel.tools import cancellation_refund, room_difference

NOUNS = {"booking_id": "booking"}


class Stay:
    """The booking that a task is about, with its guest, payment and ticket, beside another guest's."""

    def __init__(
        self,
        draw: Draw,
        *,
        tier: str | None = None,
        verified: str = "yes",
        room: str | None = None,
        nights: int | None = None,
        paid_twice: bool = False,
        **flags: Any,
    ) -> None:
        self._draw = draw
        self.rows: dict[str, list[dict[str, Any]]] = {"guests": [], "bookings": [], "payments": [], "tickets": []}
        self.room = room or draw.pick(tuple(ROOMS))
        self.nights = nights or draw.number(2, 6)
        self.total = ROOMS[self.room] * self.nights + draw.number(0, 60)
        self.booking = draw.entity("B")
        self.payments = [draw.entity("P") for _ in range(1 + paid_twice)]
        self.ticket = draw.entity("T")
        tier = tier or draw.pick(("gold", "silver", "basic"))
        self._add(self.booking, self.payments, self.ticket, self.room, tier, verified, flags)
        self._add(
            draw.entity("B"),
            [draw.entity("P")],
            draw.entity("T"),
            draw.pick(tuple(ROOMS)),
            draw.pick(("gold", "silver", "basic")),
            "yes",
            flags,
        )

    def _add(
        self,
        booking: str,
        payments: Sequence[str],
        ticket: str,
        room: str,
        tier: str,
        verified: str,
        flags: Mapping[str, Any],
    ) -> None:
        guest = self._draw.entity("G")
        name = self._draw.pick(GUEST_NAMES)
        self.rows["guests"].append({"guest_id": guest, "name": name, "tier": tier, "verified": verified})
        self.rows["bookings"].append(
            {
                "booking_id": booking,
                "guest_id": guest,
                "room": room,
                "nights": self.nights,
                "total": self.total,
                **flags,
            }
        )
        for payment in payments:
            self.rows["payments"].append({"payment_id": payment, "booking_id": booking, "amount": self.total})
        self.rows["tickets"].append({"ticket_id": ticket, "booking_id": booking})

    # Amounts that the tools will return

    def difference(self, room: str) -> int:
        return abs(room_difference(ROOMS[self.room], ROOMS[room], self.nights))

    def cancelled(self, notice: str) -> int:
        return cancellation_refund(self.total, notice)

    # Calls

    @property
    def read(self) -> ToolCall:
        return ToolCall("get_booking", {"booking_id": self.booking})

    def on_booking(self, name: str, **arguments: Any) -> ToolCall:
        """A call whose first parameter is the booking."""
        return ToolCall(name, {"booking_id": self.booking, **arguments})

    def refund(self, amount: int, payment: int = 0) -> ToolCall:
        return ToolCall("refund", {"payment_id": self.payments[payment], "amount": amount})

    def charge(self, amount: int) -> ToolCall:
        return ToolCall("charge", {"payment_id": self.payments[0], "amount": amount})

    def close(self, resolution: str) -> ToolCall:
        return ToolCall("close_ticket", {"ticket_id": self.ticket, "resolution": resolution})

    def serve(self, *calls: ToolCall) -> Plan:
        """Do it and close the ticket as resolved."""
        return Plan(*calls, self.close("resolved"))

    @property
    def deny(self) -> Plan:
        return Plan(self.close("denied"))

    def deny_after(self, *calls: ToolCall) -> Plan:
        """Do that much, then refuse."""
        return Plan(*calls, self.close("denied"))

    @property
    def escalate(self) -> Plan:
        return Plan(self.close("escalated"))

    # The draft

    def draft(
        self,
        openings: Sequence[str],
        right: Plan,
        main: tuple[str, Plan],
        others: Mapping[str, Plan] | None = None,
        facts: Mapping[str, str] | None = None,
        withhold: str = "booking_id",
    ) -> Draft:
        """``withhold`` names the fact that a third of the openings leave out."""
        facts = {"booking_id": self.booking, **(facts or {})}
        withheld = (withhold,) if self._draw.one_in(1 / 3) else ()
        return draft(
            rows=self.rows,
            opening=opening_with(self._draw.pick(openings), facts, withheld, NOUNS),
            facts=facts,
            withheld=withheld,
            read=self.read,
            right=right,
            main=main,
            others={**(others or {}), "forget_ticket": right.without("close_ticket")},
        )
