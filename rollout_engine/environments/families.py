"""Task families and what their generators draw from.

Invariant: a generator sees only its :class:`Draw`, so a task depends on (domain, family, split, seed)
and nothing else; and every entity number of a draw belongs to the draw's split, so that training and
held-out tasks share no entity.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rollout_engine.environments.task import Slip, Split, Task, Turn

Choice = TypeVar("Choice")

ENTITY = re.compile(r"[A-Z](\d)(\d)(\d)")
"""An entity's id: an upper-case letter and three digits."""

GUEST_NAMES = ("ana", "ben", "cleo", "dan", "eva", "finn", "gus", "hana", "ivo", "june", "kofi", "lena")


def split_of(entity: str) -> Split:
    """Which split an entity belongs to: held-out when its digit sum is divisible by 5.

    Raises ``ValueError`` when ``entity`` is not an id.
    """
    match = ENTITY.fullmatch(entity)
    if match is None:
        raise ValueError(f"{entity!r} is not an entity id: a letter and three digits")
    return "heldout" if sum(map(int, match.groups())) % 5 == 0 else "train"


class Draw:
    """The random choices of one task."""

    def __init__(self, domain: str, family: str, split: Split, seed: int) -> None:
        self._random = random.Random(f"{domain}/{family}/{split}/{seed}")
        self._seed = seed
        # Families start at different points of the low-discrepancy sequences below.
        start = random.Random(f"{domain}/{family}/{split}")
        self._variant_start, self._one_in_start = start.random(), start.random()
        self._split = split
        self._used: set[str] = set()

    def entity(self, letter: str) -> str:
        """A fresh id of this split."""
        while True:
            entity = f"{letter}{self._random.randrange(1000):03}"
            if split_of(entity) == self._split and entity not in self._used:
                self._used.add(entity)
                return entity

    def pick(self, choices: Sequence[Choice]) -> Choice:
        """One of ``choices``, each as likely."""
        return self._random.choice(choices)

    def number(self, low: int, high: int, step: int = 1) -> int:
        """A multiple of ``step`` away from ``low``, at most ``high``."""
        return self._random.randrange(low, high + 1, step)

    def variant(self, weights: Mapping[str, float]) -> str:
        """One of the variants. Consecutive seeds cover them in proportion (a golden-ratio sequence), so
        that a handful of tasks holds the mix that a thousand would."""
        point = (self._variant_start + self._seed * (math.sqrt(5) - 1) / 2) % 1 * sum(weights.values())
        for name, weight in weights.items():
            point -= weight
            if point < 0:
                return name
        return name

    def one_in(self, fraction: float) -> bool:
        """True for ``fraction`` of the seeds, spread evenly and independently of :meth:`variant`."""
        return (self._one_in_start + self._seed * math.sqrt(2)) % 1 < fraction


@dataclass(frozen=True)
class Draft:
    """A task without its name."""

    rows: Mapping[str, Sequence[Mapping[str, Any]]]
    opening: str
    facts: Mapping[str, str]
    script: tuple[Turn, ...]
    slips: tuple[Slip, ...] = field(default=())


@dataclass(frozen=True)
class Family:
    """``build`` turns a draw into a task; it must be a function of the draw alone."""

    name: str
    build: Callable[[Draw], Draft]

    def task(self, domain: str, split: Split, seed: int) -> Task:
        """The family's task of that seed."""
        draft = self.build(Draw(domain, self.name, split, seed))
        return Task(
            id=f"{domain}/{self.name}/{split}/{seed}",
            domain=domain,
            family=self.name,
            split=split,
            seed=seed,
            rows=draft.rows,
            opening=draft.opening,
            facts=draft.facts,
            script=draft.script,
            slips=draft.slips,
        )
