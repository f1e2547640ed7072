"""Retail's tables. A column that is null plays no part in an order and is left out of what tools show."""

from __future__ import annotations

from rollout_engine.environments.schema import Schema, Table

ITEMS = ("lamp", "chair", "desk", "phone", "camera", "coat", "bag", "watch")

CITIES = ("rome", "oslo", "lima", "cairo", "delhi", "paris")

SCHEMA = Schema(
    sql="""
    CREATE TABLE carriers (carrier TEXT PRIMARY KEY, days INTEGER NOT NULL);
    CREATE TABLE customers (
        customer_id TEXT PRIMARY KEY,
        name TEXT NOT NULL,
        tier TEXT NOT NULL CHECK (tier IN ('gold', 'silver', 'basic')),
        risk TEXT NOT NULL CHECK (risk IN ('low', 'high'))
    );
    CREATE TABLE orders (
        order_id TEXT PRIMARY KEY,
        customer_id TEXT NOT NULL REFERENCES customers,
        item TEXT NOT NULL,
        total INTEGER NOT NULL,
        status TEXT NOT NULL CHECK (status IN ('packed', 'shipped', 'arrived', 'cancelled')),
        city TEXT NOT NULL,
        restock INTEGER NOT NULL DEFAULT 0,
        price_drop INTEGER NOT NULL DEFAULT 0,
        postage INTEGER NOT NULL DEFAULT 0,
        photo TEXT, stock TEXT, window TEXT, back TEXT, refund_due INTEGER,
        manager TEXT NOT NULL DEFAULT 'granted'
    );
    CREATE TABLE shipments (
        shipment_id TEXT PRIMARY KEY,
        order_id TEXT NOT NULL REFERENCES orders,
        carrier TEXT NOT NULL REFERENCES carriers,
        delivery TEXT NOT NULL CHECK (delivery IN ('moving', 'late', 'lost', 'stopped', 'done'))
    );
    CREATE TABLE exceptions (
        exception_id TEXT PRIMARY KEY,
        shipment_id TEXT NOT NULL REFERENCES shipments,
        cause TEXT NOT NULL CHECK (cause IN ('customs', 'address', 'weather')),
        action TEXT NOT NULL DEFAULT 'none'
    );
    CREATE TABLE claims (
        claim_id INTEGER PRIMARY KEY AUTOINCREMENT,
        shipment_id TEXT NOT NULL REFERENCES shipments,
        created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
    );
    CREATE TABLE replacements (
        replacement_id INTEGER PRIMARY KEY AUTOINCREMENT,
        order_id TEXT NOT NULL REFERENCES orders,
        claimed TEXT NOT NULL,
        created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
    );
    CREATE TABLE returns (
        return_id INTEGER PRIMARY KEY AUTOINCREMENT,
        order_id TEXT NOT NULL REFERENCES orders,
        reason TEXT NOT NULL,
        created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
    );
    CREATE TABLE credits (
        credit_id INTEGER PRIMARY KEY AUTOINCREMENT,
        order_id TEXT NOT NULL REFERENCES orders,
        amount INTEGER NOT NULL,
        created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
    );
    CREATE TABLE payments (
        payment_id TEXT PRIMARY KEY,
        order_id TEXT NOT NULL REFERENCES orders,
        amount INTEGER NOT NULL
    );
    CREATE TABLE approvals (
        approval_id INTEGER PRIMARY KEY AUTOINCREMENT,
        order_id TEXT NOT NULL REFERENCES orders,
        reason TEXT NOT NULL,
        status TEXT NOT NULL,
        created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
    );
    CREATE TABLE refunds (
        refund_id INTEGER PRIMARY KEY AUTOINCREMENT,
        payment_id TEXT NOT NULL REFERENCES payments,
        amount INTEGER NOT NULL,
        authorised TEXT NOT NULL,
        created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
    );
    CREATE TABLE tickets (
        ticket_id TEXT PRIMARY KEY,
        order_id TEXT NOT NULL REFERENCES orders,
        status TEXT NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'closed')),
        resolution TEXT NOT NULL DEFAULT 'none',
        note TEXT NOT NULL DEFAULT '',
        updated_at TEXT
    );
    """,
    tables=(
        Table("carriers", ("carrier",)),
        Table("customers", ("customer_id",)),
        Table("orders", ("order_id",)),
        Table("shipments", ("shipment_id",)),
        Table("exceptions", ("exception_id",)),
        Table("claims", ("claim_id",), frozenset({"claim_id", "created_at"})),
        Table("replacements", ("replacement_id",), frozenset({"replacement_id", "created_at"})),
        Table("returns", ("return_id",), frozenset({"return_id", "created_at"})),
        Table("credits", ("credit_id",), frozenset({"credit_id", "created_at"})),
        Table("payments", ("payment_id",)),
        Table("approvals", ("approval_id",), frozenset({"approval_id", "created_at"})),
        Table("refunds", ("refund_id",), frozenset({"refund_id", "created_at"})),
        Table("tickets", ("ticket_id",), frozenset({"note", "updated_at"})),
    ),
    base={"carriers": [{"carrier": "swift", "days": 2}, {"carrier": "steady", "days": 5}]},
)
