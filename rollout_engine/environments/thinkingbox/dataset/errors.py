"""What is said of a data set that can't be used.

Invariant: a fault names the file, the line where there is one, and the nearest known name where a name is wrong.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

from rollout_engine.errors import ConfigurationError


class DatasetError(ConfigurationError):
    """A file of a data set, or a selector, that can't be used. ``line`` counts from 1; 0 where there is none."""

    def __init__(self, message: str, file: Path | str = "", line: int = 0) -> None:
        where = f"{file}:{line}" if line else str(file)
        super().__init__(f"{where}: {message}" if where else message)
        self.message = message
        self.file = str(file)
        self.line = line


def nearest(name: str, known: Iterable[str], what: str = "known here") -> str:
    """The end of a sentence about an unknown name: the nearest known one, else those that are known."""
    known = sorted(set(known))
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if near:
        return f"; did you mean {near[0]!r}?"
    listed = ", ".join(known[:20]) + (f" and {len(known) - 20} more" if len(known) > 20 else "")
    return f"; {what}: {listed or 'none'}"
