"""Options that more than one verb takes, with one wording."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from protocol.config import is_http
from rollout_engine.errors import ConfigurationError

TasksOption = Annotated[str, Parameter(help="heldout, train, or a file: pool.json, exported tasks, or ids.")]
RepeatOption = Annotated[int | None, Parameter(help="Attempts a task; evaluation.repeat by default.")]
ActorsOption = Annotated[
    tuple[str, ...], Parameter(consume_multiple=True, help="URLs of actors, separated by commas or blanks.")
]
Player = Literal["actors", "oracle"]
PolicyOption = Annotated[
    Player, Parameter(help="Who plays: the actors, or the oracle, which plays each task's own solution.")
]
WeightsOption = Annotated[Path | None, Parameter(help="Its model folder, to keep a digest with every row.")]


def split_urls(actors: Sequence[str]) -> list[str]:
    """URLs from ``--actors A,B`` or ``--actors A B``; raises :class:`ConfigurationError` for what is none."""
    urls = [url for item in actors for url in item.split(",") if url]
    for url in urls:
        if not is_http(url):
            raise ConfigurationError(f"--actors: {url!r} is no URL, for example http://127.0.0.1:8100")
    return urls
