"""A compiled XLA program's text as instructions, each with how often it runs.

Invariant: an instruction counts as often as the loops around it turn, where XLA knows their trip counts (of a scan it
does), and once where it doesn't.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

_BYTES = {
    "pred": 1,
    "s4": 1,
    "u4": 1,
    "s8": 1,
    "u8": 1,
    "f8e4m3fn": 1,
    "f8e5m2": 1,
    "s16": 2,
    "u16": 2,
    "f16": 2,
    "bf16": 2,
}
_BYTES |= {"s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8, "c64": 8, "c128": 16}

_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")
_ARRAY = re.compile(r"\b(\w+)\[([\d,]*)\]")
_CALLED = re.compile(r"(?:calls|body|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


@dataclass(frozen=True)
class Array:
    """One array of a program, as one device holds it."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * _BYTES.get(self.dtype, 0)


@dataclass(frozen=True)
class Instruction:
    name: str
    operation: str
    results: tuple[Array, ...]
    operands: tuple[str, ...]
    """Names of the instructions whose results it takes."""
    attributes: str
    times: int = 1

    @property
    def bytes(self) -> int:
        return sum(array.bytes for array in self.results)


class Program:
    """``text``: what ``jax.stages.Compiled.as_text()`` gives."""

    def __init__(self, text: str):
        self._computations: dict[str, dict[str, Instruction]] = {}
        current: dict[str, Instruction] = {}
        for line in text.splitlines():
            if header := _COMPUTATION.match(line):
                current = self._computations.setdefault(header[2], {})
                self._entry = header[2] if header[1] else getattr(self, "_entry", "")
            elif found := _INSTRUCTION.match(line):
                current[found[1]] = _instruction(found[1], found[2])

    @cached_property
    def instructions(self) -> tuple[Instruction, ...]:
        """Every instruction that runs, fused ones included."""
        return tuple(instruction for instruction, _ in self._run(self._entry, 1))

    @cached_property
    def multiply_adds(self) -> int:
        """Of all matrix products, on one device."""
        return sum(_multiply_adds(i, others) for i, others in self._run(self._entry, 1) if i.operation == "dot")

    def operand_bytes(self, instruction: Instruction) -> int:
        """Bytes that an instruction takes, on one device."""
        known = next(c for c in self._computations.values() if instruction.name in c)
        return sum(known[name].bytes for name in instruction.operands if name in known)

    def _run(self, computation: str, times: int) -> Iterator[tuple[Instruction, dict[str, Instruction]]]:
        known = self._computations.get(computation, {})
        for instruction in known.values():
            yield Instruction(**{**instruction.__dict__, "times": times}), known
            trips = _TRIPS.search(instruction.attributes)
            inner = times * (int(trips[1]) if trips and instruction.operation == "while" else 1)
            called = _CALLED.findall(instruction.attributes)
            if branches := _BRANCHES.search(instruction.attributes):
                called += [name.strip().lstrip("%") for name in branches[1].split(",")]
            for name in called:
                yield from self._run(name, inner)


def _instruction(name: str, text: str) -> Instruction:
    # A tuple's type has spaces in it, an operation's name none: what comes before its parenthesis is the type.
    found = re.search(r"(?:^|[\s}\])])([a-z][\w\-]*)\(", text)
    if not found:
        return Instruction(name, "", (), (), text)
    kind, rest = text[: found.start(1)], text[found.end() :]
    inside = rest[: _closing(rest)]
    results = tuple(Array(d, tuple(map(int, filter(None, s.split(","))))) for d, s in _ARRAY.findall(kind))
    return Instruction(name, found[1], results, tuple(re.findall(r"%([\w.\-]+)", inside)), rest[len(inside) :])


def _closing(text: str) -> int:
    depth = 1
    for i, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return i
    return len(text)


def _multiply_adds(dot: Instruction, known: dict[str, Instruction]) -> int:
    contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", dot.attributes)
    left = known[dot.operands[0]].results[0].shape
    inner = math.prod(left[int(axis)] for axis in contracted[1].split(",") if axis) if contracted else 1
    return dot.times * math.prod(dot.results[0].shape) * inner
