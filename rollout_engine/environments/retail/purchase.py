"""A customer's order as rows and as calls: what retail's generators build their tasks of."""

from __future__ import annotations

from typing import Any

from protocol.records import ToolCall
from rollout_engine.environments.drafting import Case
from rollout_engine.environments.families import GUEST_NAMES, Draw
from rollout_engine.environments.retail.schema import CITIES, ITEMS

TIERS = ("gold", "silver", "basic")


class Purchase(Case):
    """The order that a task is about, with its customer, payment and ticket, beside another customer's.

    ``delivery`` adds a shipment, and ``cause`` an exception of it; ``flags`` are columns of the order.
    """

    id_fact = "order_id"
    read_tool = "get_order"

    def __init__(
        self,
        draw: Draw,
        *,
        status: str,
        tier: str | None = None,
        risk: str = "low",
        total: int | None = None,
        delivery: str | None = None,
        cause: str | None = None,
        **flags: Any,
    ) -> None:
        super().__init__(draw)
        self.rows = {table: [] for table in ("customers", "orders", "shipments", "exceptions", "payments", "tickets")}
        self.total = draw.number(30, 990) if total is None else total
        self.shipment = self.exception = ""
        self.subject, self.payments, self.ticket = self._add(tier, risk, self.total, status, delivery, cause, flags)
        if self.rows["shipments"]:
            self.shipment = self.rows["shipments"][0]["shipment_id"]
        if self.rows["exceptions"]:
            self.exception = self.rows["exceptions"][0]["exception_id"]
        self.city = self.rows["orders"][0]["city"]
        self._add(None, "low", draw.number(30, 990), status, delivery, cause, {})

    def _add(
        self,
        tier: str | None,
        risk: str,
        total: int,
        status: str,
        delivery: str | None,
        cause: str | None,
        flags: dict[str, Any],
    ) -> tuple[str, list[str], str]:
        draw, rows = self._draw, self.rows
        customer, order, payment, ticket = (draw.entity(letter) for letter in "COPT")
        tier = tier or draw.pick(TIERS)
        rows["customers"].append({"customer_id": customer, "name": draw.pick(GUEST_NAMES), "tier": tier, "risk": risk})
        rows["orders"].append(
            {
                "order_id": order,
                "customer_id": customer,
                "item": draw.pick(ITEMS),
                "total": total,
                "status": status,
                "city": draw.pick(CITIES),
                **flags,
            }
        )
        if delivery:
            shipment = draw.entity("S")
            carrier = draw.pick(("swift", "steady"))
            rows["shipments"].append(
                {"shipment_id": shipment, "order_id": order, "carrier": carrier, "delivery": delivery}
            )
            if cause:
                rows["exceptions"].append({"exception_id": draw.entity("E"), "shipment_id": shipment, "cause": cause})
        rows["payments"].append({"payment_id": payment, "order_id": order, "amount": total})
        rows["tickets"].append({"ticket_id": ticket, "order_id": order})
        return order, [payment], ticket

    def claim(self) -> ToolCall:
        return ToolCall("file_claim", {"shipment_id": self.shipment})

    def fix(self, action: str) -> ToolCall:
        return ToolCall("fix_exception", {"exception_id": self.exception, "action": action})
