"""Outages at a terminal: a line when one opens, relapses, recovers or is over.

Invariant: what is said depends on what is told and on what was said before, never on when.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.markup import escape

from rollout_engine.circuit import OutageStatus

MESSAGE = 300
"""Characters of an error that the terminal shows."""


class OutageLines:
    """``say`` prints a line; ``steady``: no bar can be drawn, so a line a failed probe says that all still lives."""

    def __init__(self, say: Callable[[str], None], *, steady: bool):
        self._say = say
        self._steady = steady
        self._open: Sequence[OutageStatus] = ()

    def tell(self, outages: Sequence[OutageStatus]) -> None:
        """These are open now."""
        before = {outage.kind: outage.paused for outage in self._open}
        for outage in outages:
            probed = outage.next_probe > 0 and self._steady
            if before.pop(outage.kind, None) != outage.paused or probed:
                last = f"; the last error: {escape(outage.message[:MESSAGE])}" if outage.paused else ""
                self._say(f"[yellow]outage[/] {describe(outage)}{last}")
        for kind in before:
            self._say(f"[green]outage of {kind} is over[/]: all episodes resume")
        self._open = outages

    def __str__(self) -> str:
        """What is open, to stand beside a bar; with colours."""
        return "  ".join(f"[bold yellow]outage {describe(outage)}[/]" for outage in self._open)


def describe(outage: OutageStatus) -> str:
    """An outage in a few words."""
    state = f"of {outage.kind} for {outage.seconds:.0f} s, {outage.errors} errors: "
    if not outage.paused:
        return state + "a probe succeeded, launches resume step by step"
    return state + "launches pause, " + (f"next probe in {outage.next_probe:.0f} s" if outage.next_probe else "probing")
