"""Which actor an episode goes to: what each has shown of itself, and the choice.

Invariant: an episode goes where it can expect to be served soonest, so a slow actor gets fewer episodes in proportion
to its speed, and one whose cache is full gets none while another has room. An actor that asks for a pause gets it and
isn't thought dead. Pure: the caller brings the time (seconds, any origin) and owns every wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.records import ActorLoad

FULL = 0.9
"""Share of an actor's cache in use above which one more episode would throw out another."""
_MEMORY = 64
"""Answers over which an actor's speed is measured, the older the less they weigh."""
_FIRST_REST, _LONGEST_REST = 0.5, 30.0
"""Seconds of pause for an actor that is busy and doesn't say for how long, doubled each time in a row."""


@dataclass
class Member:
    """What one actor has shown of itself."""

    in_flight: int = 0
    suspect_since: float | None = None
    """Unix time of a failure that no later word from the actor has cleared."""
    rests_until: float = -float("inf")
    _refusals: int = 0
    """Rests in a row without an answer between them."""
    _tokens: float = 0.0
    _seconds: float = 0.0

    @property
    def speed(self) -> float | None:
        """Tokens a second that a request gets; None before the first answer."""
        return self._tokens / self._seconds if self._seconds else None

    def answered(self, tokens: int, seconds: float) -> None:
        """A request came back with ``tokens`` sampled after ``seconds``, waiting at the server included."""
        kept = 1 - 1 / _MEMORY
        self._tokens = self._tokens * kept + tokens
        self._seconds = self._seconds * kept + max(seconds, 1e-9)
        self._refusals = 0

    def rest(self, now: float, asked: float | None, longest: float) -> None:
        """Leave it alone for the seconds that it ``asked`` for, at most ``longest``."""
        if now >= self.rests_until:  # of many requests refused at once, the first counts
            self._refusals += 1
        guess = min(_FIRST_REST * 2.0 ** min(self._refusals - 1, 16), _LONGEST_REST)
        self.rests_until = max(self.rests_until, now + min(guess if asked is None else asked, longest))

    def resting(self, now: float) -> bool:
        return now < self.rests_until


def choose(members: Mapping[str, Member], loads: Mapping[str, ActorLoad]) -> str:
    """URL of the actor for one more episode, of ``members`` (at least one).

    Each is expected to give a request its measured speed, shared with those in flight; one that hasn't answered yet is
    thought as fast as the fastest. Between equals the one whose own load figures are lower is chosen.
    """
    fastest = max((member.speed or 0.0 for member in members.values()), default=0.0) or 1.0

    def cost(url: str) -> tuple[bool, float, int, str]:
        member, load = members[url], loads.get(url, ActorLoad())
        wait = (member.in_flight + 1) / (member.speed or fastest)
        return load.kv_use >= FULL, wait, load.running + load.waiting, url

    return min(members, key=cost)
