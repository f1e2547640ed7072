"""Packed rows, and the script that asks transformers."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ACTOR = Path(__file__).parents[3] / ".venv/actor/bin/python"
SCRIPT = Path(__file__).with_name("transformers_reference.py")
FAMILIES = ("qwen3", "qwen3-tied", "llama", "smollm2", "qwen3_5-text", "qwen3_5")


@dataclass(frozen=True)
class Row:
    """Sequences packed into one row in the order given, filled up with padding. All int32 [1, T]."""

    ids: np.ndarray
    positions: np.ndarray
    segments: np.ndarray

    @classmethod
    def of(cls, sequences: list[np.ndarray], tokens: int) -> Row:
        filling = tokens - sum(map(len, sequences))

        def pad(parts):
            return np.pad(np.concatenate(parts), (0, filling)).astype(np.int32)[None]

        return cls(
            pad(sequences),
            pad([np.arange(len(s)) for s in sequences]),
            pad([np.full(len(s), i) for i, s in enumerate(sequences, 1)]),
        )


def transformers(verb: str, folder: Path) -> None:
    subprocess.run([ACTOR, SCRIPT, verb, folder], check=True, capture_output=True, timeout=600)
