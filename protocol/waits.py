"""How long a server has kept its callers waiting, each moment counted once.

Invariant: :meth:`Waits.seconds` may be asked from another thread, and never says less than it has been.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Waits:
    """The waits of one connection."""

    def __init__(self) -> None:
        self._now = 0
        """Callers that wait."""
        self._since = 0.0
        self._ended = 0.0
        """Seconds before ``_since``."""

    @contextmanager
    def one(self) -> Iterator[None]:
        """The body waits. Bodies may overlap."""
        if not self._now:
            self._since = time.monotonic()
        self._now += 1
        try:
            yield
        finally:
            if self._now == 1:
                self._ended += time.monotonic() - self._since
            self._now -= 1

    def seconds(self) -> float:
        # What runs first: a wait that ends in between is counted twice for a moment rather than not at all.
        running = time.monotonic() - self._since if self._now else 0.0
        return running + self._ended
