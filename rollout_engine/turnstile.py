"""One episode at a time through the event loop's busy parts.

Invariant: however many episodes are asked for, or answered, at once, each pass of the event loop takes up one of them.
To open an episode, or to read a turn and carry it out, takes a millisecond or more without a pause. The loop runs all
that is ready before it looks at its timers and sockets again, so hundreds at once would hold up every other episode,
heartbeat and time-out for as long, and more would become ready meanwhile. Here they queue in the order in which they
came.
"""

from __future__ import annotations

import trio


class Turnstile:
    def __init__(self) -> None:
        self._lock = trio.Lock()

    async def go_through(self) -> None:
        """Wait for one's turn; nobody else goes through in the same pass of the event loop."""
        async with self._lock:
            await trio.lowlevel.checkpoint()
