"""What devices say to each other in a compiled program.

Invariant: every collective is counted, as often as it runs; none is so small that it is left out. So one that nobody
asked for, such as a gather of all layers' weights or a gradient that is whole everywhere, shows as a number.
"""

from __future__ import annotations

from typing import NamedTuple

from learner.hlo import Array, Program

KINDS = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute")


class Collective(NamedTuple):
    """One collective of a program, and how often it runs."""

    kind: str
    arrays: tuple[Array, ...]
    """What it gives each device."""
    bytes: int
    """What a device gives or gets in one run, the larger of both."""
    times: int


class Total(NamedTuple):
    """``count``: runs, ``bytes``: a device's, of all of them together."""

    count: int
    bytes: int


def collectives(program: Program) -> list[Collective]:
    """In the program's order. An asynchronous one counts where it starts."""
    found = []
    for instruction in program.instructions:
        kind = instruction.operation.removesuffix("-start")
        if kind in KINDS:
            most = max(instruction.bytes, program.operand_bytes(instruction))
            found.append(Collective(kind, instruction.results, most, instruction.times))
    return found


def totals(found: list[Collective]) -> dict[str, Total]:
    """By kind, in the order of ``KINDS``; a kind that doesn't occur counts 0."""
    return {
        kind: Total(
            sum(c.times for c in found if c.kind == kind), sum(c.times * c.bytes for c in found if c.kind == kind)
        )
        for kind in KINDS
    }
