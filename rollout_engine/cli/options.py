"""Options that more than one verb takes, with one wording."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

TasksOption = Annotated[str, Parameter(help="heldout, train, or a file: pool.json, exported tasks, or ids.")]
RepeatOption = Annotated[int | None, Parameter(help="Attempts a task; evaluation.repeat by default.")]
ActorsOption = Annotated[
    tuple[str, ...], Parameter(consume_multiple=True, help="URLs of actors, separated by commas or blanks.")
]
WeightsOption = Annotated[Path | None, Parameter(help="Its model folder, to keep a digest with every row.")]


def split_urls(actors: Sequence[str]) -> list[str]:
    """URLs from ``--actors A,B`` or ``--actors A B``."""
    return [url for item in actors for url in item.split(",") if url]
