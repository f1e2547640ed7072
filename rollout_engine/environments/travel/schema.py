"""Travel's tables. A column that is null plays no part in a booking and is left out of what tools show."""

from __future__ import annotations

from rollout_engine.environments.schema import Schema, Table

ROOMS = {"single": 61, "standard": 93, "deluxe": 147, "suite": 233}
"""Rate a night by room type, cheapest first."""

SCHEMA = Schema(
    sql="""
    CREATE TABLE rooms (room TEXT PRIMARY KEY, rate INTEGER NOT NULL);
    CREATE TABLE guests (
        guest_id TEXT PRIMARY KEY,
        name TEXT NOT NULL,
        tier TEXT NOT NULL CHECK (tier IN ('gold', 'silver', 'basic')),
        verified TEXT NOT NULL CHECK (verified IN ('yes', 'no'))
    );
    CREATE TABLE bookings (
        booking_id TEXT PRIMARY KEY,
        guest_id TEXT NOT NULL REFERENCES guests,
        room TEXT NOT NULL REFERENCES rooms,
        nights INTEGER NOT NULL,
        total INTEGER NOT NULL,
        status TEXT NOT NULL DEFAULT 'booked' CHECK (status IN ('booked', 'cancelled')),
        authorised TEXT NOT NULL DEFAULT 'no',
        checkout TEXT NOT NULL DEFAULT 'normal',
        month TEXT NOT NULL DEFAULT 'june',
        notice TEXT, vacancy TEXT, spare TEXT, flexible TEXT, fee INTEGER,
        manager TEXT NOT NULL DEFAULT 'granted'
    );
    CREATE TABLE payments (
        payment_id TEXT PRIMARY KEY,
        booking_id TEXT NOT NULL REFERENCES bookings,
        amount INTEGER NOT NULL,
        refunded INTEGER NOT NULL DEFAULT 0,
        charged INTEGER NOT NULL DEFAULT 0
    );
    CREATE TABLE approvals (
        approval_id INTEGER PRIMARY KEY AUTOINCREMENT,
        booking_id TEXT NOT NULL REFERENCES bookings,
        reason TEXT NOT NULL,
        status TEXT NOT NULL,
        created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
    );
    CREATE TABLE vouchers (
        voucher_id INTEGER PRIMARY KEY AUTOINCREMENT,
        booking_id TEXT NOT NULL REFERENCES bookings,
        amount INTEGER NOT NULL,
        created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
    );
    CREATE TABLE tickets (
        ticket_id TEXT PRIMARY KEY,
        booking_id TEXT NOT NULL REFERENCES bookings,
        status TEXT NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'closed')),
        resolution TEXT NOT NULL DEFAULT 'none',
        note TEXT NOT NULL DEFAULT '',
        updated_at TEXT
    );
    """,
    tables=(
        Table("rooms", ("room",)),
        Table("guests", ("guest_id",)),
        Table("bookings", ("booking_id",)),
        Table("payments", ("payment_id",)),
        Table("approvals", ("approval_id",), frozenset({"approval_id", "created_at"})),
        Table("vouchers", ("voucher_id",), frozenset({"voucher_id", "created_at"})),
        Table("tickets", ("ticket_id",), frozenset({"note", "updated_at"})),
    ),
    base={"rooms": [{"room": room, "rate": rate} for room, rate in ROOMS.items()]},
)
