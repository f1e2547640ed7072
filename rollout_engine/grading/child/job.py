"""What a grader child is asked, what it may use, and what it came to.

Invariant: a pass is told only by a test that ran to its end; every other way out has a name of its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

Kind = Literal["pass", "fail", "raised", "limit", "crashed"]
"""How a run ended.

``pass``     it came to its end, with a reward.
``fail``     an assertion failed.
``raised``   something else was raised, or what the test returned is no reward.
``limit``    it was stopped at a limit of time or memory.
``crashed``  its process ended without a word.
"""


@dataclass(frozen=True)
class GraderLimits:
    """Bounds of one grader child, and of all of them together."""

    cpu_seconds: int = 10
    wall_seconds: float = 120.0
    """Waiting for the judge included."""
    memory_bytes: int = 2 << 30
    """Of address space."""
    file_bytes: int = 0
    """Largest file that a test may write."""
    descriptors: int = 64
    output_bytes: int = 64 << 10
    """Of what a test prints, and of its message."""
    concurrent: int = field(default_factory=lambda: 2 * (os.cpu_count() or 1))
    """Children at once."""
    start_seconds: float = 30.0


@dataclass(frozen=True)
class Job:
    """One run of one test.

    ``code``      the test's file; ``function`` is defined there and takes ``x``, ``judge`` and fixtures by name.
    ``context``   fields of the TestContext, JSON-ready.
    ``fixtures``  {name: {"type": dotted path, "arguments": {…}}}.
    """

    uid: str
    code: str
    function: str
    context: Mapping[str, Any]
    fixtures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class Outcome(msgspec.Struct, frozen=True):
    """How the run ended. ``reward`` is 0 unless ``kind`` is pass."""

    kind: Kind
    reward: float = 0.0
    message: str = ""
    line: int = 0
    """Of the test's file, where it failed or raised; 0 where that isn't known."""
    source: str = ""
    """That line."""
    trace: str = ""
    prints: str = ""
    metadata: dict[str, Any] = {}
    """What the test and its fixtures left in ``x.metadata``, as JSON."""
    cpu_seconds: float = 0.0
    wall_limited: bool = False
    """The wall limit, which a busy machine may also reach, stopped it."""
