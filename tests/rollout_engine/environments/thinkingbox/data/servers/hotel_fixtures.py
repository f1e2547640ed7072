"""Fixtures that tests of the small data set take."""


class Desk:
    """Reads the hotel's effects; ``x`` is injected, ``server`` is set in the file or stays as it is."""

    def __init__(self, x, server="hotel"):
        self.bookings = x.effects[server]["bookings"]


class Auditor:
    """Injected with another fixture; a context manager, so that it is left after the test."""

    def __init__(self, desk, limit):
        self.desk = desk
        self.limit = limit
        self.is_open = False

    def __enter__(self):
        self.is_open = True
        return self

    def __exit__(self, *_):
        self.is_open = False

    def within_limit(self):
        assert self.is_open
        return all(booking["nights"] <= self.limit for booking in self.desk.bookings.values())
