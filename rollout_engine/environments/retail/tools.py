"""Retail's tools. None enforces the policy: what an agent should not do, it can do, and is graded for."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any, Literal

from rollout_engine.environments.ids import Amount, Id, Resolution
from rollout_engine.environments.tools import ToolFailure

City = Literal["rome", "oslo", "lima", "cairo", "delhi", "paris"]


def return_refund(total: int, postage: int, reason: str) -> int:
    """What a return pays back: everything, less the postage when the customer just changed their mind."""
    return total - postage if reason == "unwanted" else total


def get_order(db: sqlite3.Connection, order_id: Id) -> dict[str, Any]:
    """read an order"""
    order = _order(db, order_id)
    name, tier, risk = db.execute(
        "SELECT name, tier, risk FROM customers WHERE customer_id = ?", (order["customer_id"],)
    ).fetchone()
    shipment, delivery, exception, cause = db.execute(
        "SELECT shipment_id, delivery, exception_id, cause FROM shipments LEFT JOIN exceptions USING (shipment_id) "
        "WHERE order_id = ?",
        (order_id,),
    ).fetchone() or (None, None, None, None)
    (payment,) = db.execute("SELECT payment_id FROM payments WHERE order_id = ?", (order_id,)).fetchone() or (None,)
    (ticket,) = db.execute("SELECT ticket_id FROM tickets WHERE order_id = ?", (order_id,)).fetchone() or (None,)
    return {
        "customer": name,
        "tier": tier,
        "risk": risk,
        "item": order["item"],
        "total": order["total"],
        "status": order["status"],
        "shipment": shipment,
        "delivery": delivery,
        "exception": exception,
        "cause": cause,
        "photo": order["photo"],
        "stock": order["stock"],
        "window": order["window"],
        "back": order["back"],
        "refund_due": order["refund_due"],
        "payment": payment,
        "ticket": ticket,
    }


def check_price(db: sqlite3.Connection, order_id: Id) -> dict[str, Any]:
    """compare with the price now"""
    return {"refund_due": _order(db, order_id)["price_drop"]}


def request_approval(db: sqlite3.Connection, order_id: Id) -> dict[str, Any]:
    """ask the manager"""
    answer = _order(db, order_id)["manager"]
    db.execute("INSERT INTO approvals (order_id, reason, status) VALUES (?, 'refund', ?)", (order_id, answer))
    return {"approval": answer}


def cancel_order(db: sqlite3.Connection, order_id: Id) -> dict[str, Any]:
    """cancel an order"""
    order = _order(db, order_id)
    if order["status"] == "cancelled":
        raise ToolFailure("cancelled")
    db.execute("UPDATE orders SET status = 'cancelled' WHERE order_id = ?", (order_id,))
    return {"refund_due": order["total"] - order["restock"]}


def change_city(db: sqlite3.Connection, order_id: Id, city: City) -> dict[str, Any]:
    """change the city of delivery"""
    if _order(db, order_id)["city"] == city:
        raise ToolFailure("no change")
    db.execute("UPDATE orders SET city = ? WHERE order_id = ?", (city, order_id))
    return {"city": city}


def start_return(
    db: sqlite3.Connection, order_id: Id, reason: Literal["damaged", "wrong", "unwanted"]
) -> dict[str, Any]:
    """start a return"""
    order = _order(db, order_id)
    if db.execute("SELECT 1 FROM returns WHERE order_id = ?", (order_id,)).fetchone():
        raise ToolFailure("no change")
    db.execute("INSERT INTO returns (order_id, reason) VALUES (?, ?)", (order_id, reason))
    return {"refund_due": return_refund(order["total"], order["postage"], reason)}


def file_claim(db: sqlite3.Connection, shipment_id: Id) -> dict[str, Any]:
    """file a claim with the carrier"""
    if db.execute("SELECT 1 FROM shipments WHERE shipment_id = ?", (shipment_id,)).fetchone() is None:
        raise ToolFailure("not found")
    db.execute("INSERT INTO claims (shipment_id) VALUES (?)", (shipment_id,))
    return {"claim": "filed"}


def send_again(db: sqlite3.Connection, order_id: Id) -> dict[str, Any]:
    """send the order again"""
    _order(db, order_id)
    claimed = db.execute(
        "SELECT 1 FROM claims JOIN shipments USING (shipment_id) WHERE order_id = ?", (order_id,)
    ).fetchone()
    # Remembering whether a claim stood at this moment makes the order of the two calls count.
    db.execute("INSERT INTO replacements (order_id, claimed) VALUES (?, ?)", (order_id, "yes" if claimed else "no"))
    return {"sent": "yes"}


def give_credit(db: sqlite3.Connection, order_id: Id, amount: Amount) -> dict[str, Any]:
    """give a credit"""
    _order(db, order_id)
    db.execute("INSERT INTO credits (order_id, amount) VALUES (?, ?)", (order_id, amount))
    return {"credit": amount}


def fix_exception(db: sqlite3.Connection, exception_id: Id, action: Literal["release", "reroute"]) -> dict[str, Any]:
    """fix a carrier exception"""
    changed = db.execute("UPDATE exceptions SET action = ? WHERE exception_id = ?", (action, exception_id))
    if changed.rowcount == 0:
        raise ToolFailure("not found")
    return {"action": action}


def refund(db: sqlite3.Connection, payment_id: Id, amount: Amount) -> dict[str, Any]:
    """refund a payment"""
    row = db.execute(
        "SELECT amount, (SELECT coalesce(sum(amount), 0) FROM refunds WHERE payment_id = p.payment_id), "
        "(SELECT 1 FROM approvals a WHERE a.order_id = p.order_id AND a.status = 'granted') "
        "FROM payments p WHERE payment_id = ?",
        (payment_id,),
    ).fetchone()
    if row is None:
        raise ToolFailure("not found")
    paid, refunded, granted = row
    if refunded + amount > paid:
        raise ToolFailure("too much")
    db.execute(
        "INSERT INTO refunds (payment_id, amount, authorised) VALUES (?, ?, ?)",
        (payment_id, amount, "yes" if granted else "no"),
    )
    return {"refunded": amount}


def close_ticket(db: sqlite3.Connection, ticket_id: Id, resolution: Resolution) -> dict[str, Any]:
    """close a ticket"""
    row = db.execute("SELECT status FROM tickets WHERE ticket_id = ?", (ticket_id,)).fetchone()
    if row is None:
        raise ToolFailure("not found")
    if row[0] == "closed":
        raise ToolFailure("closed")
    db.execute(
        "UPDATE tickets SET status = 'closed', resolution = ?, updated_at = CURRENT_TIMESTAMP WHERE ticket_id = ?",
        (resolution, ticket_id),
    )
    return {"status": "closed"}


TOOLS = (
    get_order,
    check_price,
    request_approval,
    cancel_order,
    change_city,
    start_return,
    file_claim,
    send_again,
    give_credit,
    fix_exception,
    refund,
    close_ticket,
)


def _order(db: sqlite3.Connection, order_id: str) -> Mapping[str, Any]:
    cursor = db.execute("SELECT * FROM orders WHERE order_id = ?", (order_id,))
    row = cursor.fetchone()
    if row is None:
        raise ToolFailure("not found")
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}
