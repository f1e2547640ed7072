"""Travel's tools. None enforces the policy: what an agent should not do, it can do, and is graded for."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from rollout_engine.environments.ids import Amount, Id, Resolution
from rollout_engine.environments.tools import ToolFailure

Room = Literal["single", "standard", "deluxe", "suite"]
Month = Literal["march", "april", "may", "june"]
Nights = Annotated[int, Field(ge=1, le=9)]

LATE_FEE = {"early": 0, "late": 1, "none": 2}
"""Halves of the total kept by the hotel, by notice given."""


def room_difference(old_rate: int, new_rate: int, nights: int) -> int:
    """What a change of room costs for a stay: positive is due from the guest."""
    return (new_rate - old_rate) * nights


def cancellation_refund(total: int, notice: str | None) -> int:
    """What a cancelled booking's guest gets back."""
    return total - total * LATE_FEE[notice or "early"] // 2


def get_booking(db: sqlite3.Connection, booking_id: Id) -> dict[str, Any]:
    """read a booking"""
    booking = _booking(db, booking_id)
    name, tier, verified = db.execute(
        "SELECT name, tier, verified FROM guests WHERE guest_id = ?", (booking["guest_id"],)
    ).fetchone()
    payments = [
        row[0]
        for row in db.execute("SELECT payment_id FROM payments WHERE booking_id = ? ORDER BY rowid", (booking_id,))
    ]
    ticket = db.execute("SELECT ticket_id FROM tickets WHERE booking_id = ?", (booking_id,)).fetchone()
    return {
        "guest": name,
        "tier": tier,
        "verified": verified,
        "room": booking["room"],
        "total": booking["total"],
        "status": booking["status"],
        "notice": booking["notice"],
        "vacancy": booking["vacancy"],
        "spare": booking["spare"],
        "flexible": booking["flexible"],
        "fee": booking["fee"],
        "payments": payments,
        "ticket": ticket and ticket[0],
    }


def request_approval(db: sqlite3.Connection, booking_id: Id, reason: Literal["downgrade", "fee"]) -> dict[str, Any]:
    """ask the manager"""
    answer = _booking(db, booking_id)["manager"]
    db.execute("INSERT INTO approvals (booking_id, reason, status) VALUES (?, ?, ?)", (booking_id, reason, answer))
    return {"approval": answer}


def change_room(db: sqlite3.Connection, booking_id: Id, room: Room) -> dict[str, Any]:
    """change the room type"""
    booking = _active(db, booking_id)
    if booking["room"] == room:
        raise ToolFailure("no change")
    rates = dict(db.execute("SELECT room, rate FROM rooms"))
    due = room_difference(rates[booking["room"]], rates[room], booking["nights"])
    # Remembering whether it was approved at this moment makes the order of the two calls count.
    _update(db, booking_id, room=room, total=booking["total"] + due, authorised=_authorised(db, booking_id))
    return {"charge_due": due} if due > 0 else {"refund_due": -due}


def cancel_booking(db: sqlite3.Connection, booking_id: Id) -> dict[str, Any]:
    """cancel a booking"""
    booking = _active(db, booking_id)
    _update(db, booking_id, status="cancelled")
    return {"refund_due": cancellation_refund(booking["total"], booking["notice"])}


def extend_stay(db: sqlite3.Connection, booking_id: Id, nights: Nights) -> dict[str, Any]:
    """add nights"""
    booking = _active(db, booking_id)
    (rate,) = db.execute("SELECT rate FROM rooms WHERE room = ?", (booking["room"],)).fetchone()
    due = rate * nights
    _update(db, booking_id, nights=booking["nights"] + nights, total=booking["total"] + due)
    return {"charge_due": due}


def change_month(db: sqlite3.Connection, booking_id: Id, month: Month) -> dict[str, Any]:
    """move the stay to a month"""
    if _active(db, booking_id)["month"] == month:
        raise ToolFailure("no change")
    _update(db, booking_id, month=month)
    return {"month": month}


def late_checkout(db: sqlite3.Connection, booking_id: Id) -> dict[str, Any]:
    """allow late checkout"""
    _active(db, booking_id)
    _update(db, booking_id, checkout="late")
    return {"checkout": "late"}


def move_room(db: sqlite3.Connection, booking_id: Id) -> dict[str, Any]:
    """move the guest to the spare room"""
    _active(db, booking_id)
    _update(db, booking_id, spare="used")
    return {"spare": "used"}


def waive_fee(db: sqlite3.Connection, booking_id: Id) -> dict[str, Any]:
    """waive the fee"""
    if not _booking(db, booking_id)["fee"]:
        raise ToolFailure("no fee")
    _update(db, booking_id, fee=0, authorised=_authorised(db, booking_id))
    return {"fee": 0}


def give_voucher(db: sqlite3.Connection, booking_id: Id, amount: Amount) -> dict[str, Any]:
    """give a voucher"""
    _booking(db, booking_id)
    db.execute("INSERT INTO vouchers (booking_id, amount) VALUES (?, ?)", (booking_id, amount))
    return {"voucher": amount}


def refund(db: sqlite3.Connection, payment_id: Id, amount: Amount) -> dict[str, Any]:
    """refund a payment"""
    paid, refunded = _payment(db, payment_id)
    if refunded + amount > paid:
        raise ToolFailure("too much")
    db.execute("UPDATE payments SET refunded = refunded + ? WHERE payment_id = ?", (amount, payment_id))
    return {"refunded": amount}


def charge(db: sqlite3.Connection, payment_id: Id, amount: Amount) -> dict[str, Any]:
    """charge a payment"""
    _payment(db, payment_id)
    db.execute("UPDATE payments SET charged = charged + ? WHERE payment_id = ?", (amount, payment_id))
    return {"charged": amount}


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
    get_booking,
    request_approval,
    change_room,
    cancel_booking,
    extend_stay,
    change_month,
    late_checkout,
    move_room,
    waive_fee,
    give_voucher,
    refund,
    charge,
    close_ticket,
)


def _booking(db: sqlite3.Connection, booking_id: str) -> Mapping[str, Any]:
    cursor = db.execute("SELECT * FROM bookings WHERE booking_id = ?", (booking_id,))
    row = cursor.fetchone()
    if row is None:
        raise ToolFailure("not found")
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


def _active(db: sqlite3.Connection, booking_id: str) -> Mapping[str, Any]:
    booking = _booking(db, booking_id)
    if booking["status"] == "cancelled":
        raise ToolFailure("cancelled")
    return booking


def _payment(db: sqlite3.Connection, payment_id: str) -> tuple[int, int]:
    row = db.execute("SELECT amount, refunded FROM payments WHERE payment_id = ?", (payment_id,)).fetchone()
    if row is None:
        raise ToolFailure("not found")
    return row


def _authorised(db: sqlite3.Connection, booking_id: str) -> str:
    granted = db.execute(
        "SELECT 1 FROM approvals WHERE booking_id = ? AND status = 'granted'", (booking_id,)
    ).fetchone()
    return "yes" if granted else "no"


def _update(db: sqlite3.Connection, booking_id: str, **values: Any) -> None:
    columns = ", ".join(f"{column} = ?" for column in values)
    db.execute(f"UPDATE bookings SET {columns} WHERE booking_id = ?", (*values.values(), booking_id))
