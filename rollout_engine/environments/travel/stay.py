"""A guest's stay as rows and as calls: what travel's generators build their tasks of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from protocol.records import ToolCall
from rollout_engine.environments.drafting import Case
from rollout_engine.environments.families import GUEST_NAMES, Draw
from rollout_engine.environments.travel.schema import ROOMS
from rollout_engine.environments.travel.tools import cancellation_refund, room_difference


class Stay(Case):
    """The booking that a task is about, with its guest, payment and ticket, beside another guest's."""

    id_fact = "booking_id"
    read_tool = "get_booking"

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
        super().__init__(draw)
        self.rows: dict[str, list[dict[str, Any]]] = {"guests": [], "bookings": [], "payments": [], "tickets": []}
        self.room = room or draw.pick(tuple(ROOMS))
        self.nights = nights or draw.number(2, 6)
        self.total = ROOMS[self.room] * self.nights + draw.number(0, 60)
        self.subject = draw.entity("B")
        self.payments = [draw.entity("P") for _ in range(1 + paid_twice)]
        self.ticket = draw.entity("T")
        tier = tier or draw.pick(("gold", "silver", "basic"))
        self._add(self.subject, self.payments, self.ticket, tier, verified, self.room, self.nights, self.total, flags)
        room, nights = draw.pick(tuple(ROOMS)), draw.number(2, 6)
        self._add(
            draw.entity("B"),
            [draw.entity("P")],
            draw.entity("T"),
            draw.pick(("gold", "silver", "basic")),
            "yes",
            room,
            nights,
            ROOMS[room] * nights + draw.number(0, 60),
            flags,
        )

    def _add(
        self,
        booking: str,
        payments: Sequence[str],
        ticket: str,
        tier: str,
        verified: str,
        room: str,
        nights: int,
        total: int,
        flags: Mapping[str, Any],
    ) -> None:
        guest = self._draw.entity("G")
        name = self._draw.pick(GUEST_NAMES)
        self.rows["guests"].append({"guest_id": guest, "name": name, "tier": tier, "verified": verified})
        self.rows["bookings"].append(
            {"booking_id": booking, "guest_id": guest, "room": room, "nights": nights, "total": total, **flags}
        )
        for payment in payments:
            self.rows["payments"].append({"payment_id": payment, "booking_id": booking, "amount": total})
        self.rows["tickets"].append({"ticket_id": ticket, "booking_id": booking})

    def difference(self, room: str) -> int:
        """What ``change_room`` to ``room`` will say is due, either way."""
        return abs(room_difference(ROOMS[self.room], ROOMS[room], self.nights))

    def cancelled(self, notice: str) -> int:
        """What ``cancel_booking`` will say is due back."""
        return cancellation_refund(self.total, notice)

    def charge(self, amount: int) -> ToolCall:
        return ToolCall("charge", {"payment_id": self.payments[0], "amount": amount})
