"""A small MCP server of bookings, over stdio, with the reserved tools that sessions need.

Its state after a session is compared with the state that the golden calls leave, by a hash, when effects are read.
"""

from __future__ import annotations

import copy
import hashlib
import json
from typing import Any

from mcp.server import MCPServer

TODAY = "2030-05-01"
server = MCPServer("hotel", log_level="ERROR")


class Hotel:
    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.bookings = {booking["id"]: copy.deepcopy(booking) for booking in config.get("bookings", [])}

    def get_booking(self, booking_id: str) -> dict[str, Any]:
        if booking_id not in self.bookings:
            return {"error": f"no booking {booking_id}"}
        return self.bookings[booking_id]

    def cancel_booking(self, booking_id: str) -> dict[str, Any]:
        if booking_id not in self.bookings:
            return {"error": f"no booking {booking_id}"}
        del self.bookings[booking_id]
        return {"cancelled": booking_id}

    def change_nights(self, booking_id: str, nights: int) -> dict[str, Any]:
        if booking_id not in self.bookings:
            return {"error": f"no booking {booking_id}"}
        if not 1 <= nights <= 14:
            return {"error": "a stay is 1 to 14 nights"}
        self.bookings[booking_id]["nights"] = nights
        return self.bookings[booking_id]

    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.bookings, sort_keys=True).encode()).hexdigest()


hotel = Hotel({})


@server.tool(structured_output=False)
def get_booking(booking_id: str) -> str:
    """Look a booking up by its id."""
    return json.dumps(hotel.get_booking(booking_id))


@server.tool(structured_output=False)
def cancel_booking(booking_id: str) -> str:
    """Cancel a booking."""
    return json.dumps(hotel.cancel_booking(booking_id))


@server.tool(structured_output=False)
def change_nights(booking_id: str, nights: int) -> str:
    """Set the number of nights of a booking."""
    return json.dumps(hotel.change_nights(booking_id, nights))


@server.tool(structured_output=False)
def breakfast_hours() -> str:
    """When breakfast is served."""
    return json.dumps({"opens": "7:00", "closes": "10:30"})


@server.tool(name="__reserved__init", structured_output=False)
def init(config: dict[str, Any]) -> str:
    global hotel
    hotel = Hotel(config)
    return json.dumps({"status": "ok", "today": TODAY, "bookings": sorted(hotel.bookings)})


@server.tool(name="__reserved__geteffects", structured_output=False)
def effects() -> str:
    golden = Hotel(hotel.config)
    for call in hotel.config.get("golden_test_case", {}).get("tool_interactions", []):
        getattr(golden, call["tool"])(**call["parameters"])
    return json.dumps({"bookings": hotel.bookings, "result_hash": hotel.digest(), "golden_hash": golden.digest()})


@server.tool(name="__reserved__teardown", structured_output=False)
def teardown() -> str:
    return "{}"


if __name__ == "__main__":
    server.run()
