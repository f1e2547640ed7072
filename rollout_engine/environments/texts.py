"""Everything the scripted agent says, in both domains.

Invariant: a closed set, as are the tools' error phrases. The demonstration maker and the tiny policy's
vocabulary are built from it, so a text that is not here is never said.
"""

from __future__ import annotations

DONE = "all done ."
REFUNDED = "your refund is on its way ."
DENIED = "sorry , i can not do that ."
ESCALATED = "a manager will call you ."

FINAL_TEXTS = (DONE, REFUNDED, DENIED, ESCALATED)

QUESTIONS = {
    "booking_id": "which booking ?",
    "order_id": "which order ?",
    "room": "which room ?",
    "month": "which month ?",
    "city": "which city ?",
}
"""What the agent asks for each fact that an opening withholds."""

ERRORS = (
    "bad value",
    "cancelled",
    "closed",
    "missing parameter",
    "no change",
    "no fee",
    "not found",
    "too much",
    "unknown parameter",
    "unknown tool",
)
"""Every phrase of a tool error, which reads {"error":PHRASE}."""
