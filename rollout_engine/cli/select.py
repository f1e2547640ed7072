"""``bin/select``: keep the candidate tasks that the base policy can learn from.

Bands the probed candidates by their posteriors and writes the training pool onto RUN/pool.json.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from protocol import config as configuration
from protocol.cli.verb import ConfigOption, SetOption, verb
from protocol.config import Config
from rollout_engine.cli.failures import exit_on_known_fault
from rollout_engine.curation.candidates import heldout_tasks, training_candidates
from rollout_engine.curation.pool import Pool, build_pool, write_pool
from rollout_engine.errors import ConfigurationError
from rollout_engine.evaluation.attempts import read_rows
from rollout_engine.evaluation.files import pool_file, probe_file
from rollout_engine.evaluation.tables import histogram_table

app = verb("select", __doc__)
console = Console()


@app.default
def select(
    *,
    config: ConfigOption,
    exclude: Annotated[
        Path | None, Parameter(help="A file of task ids, one a line, never to train on. Held-out ids always are.")
    ] = None,
    set: SetOption = (),
) -> None:
    """Select the pool, write it, and print the histogram of bands."""
    with exit_on_known_fault("select"):
        resolved = configuration.load(config, set)
        pool = select_pool(resolved, _read_ids(exclude) if exclude else frozenset())
        write_pool(pool, pool_file(resolved))
        kept = Counter(candidate.band for candidate in pool.candidates if candidate.kept)
        console.print(histogram_table(pool.histogram, kept, pool.keep))
        left_out = ", ".join(f"{count} {reason}" for reason, count in pool.dropped.items()) or "none"
        console.print(f"{len(pool.tasks)} tasks in {pool_file(resolved)}; left out: {left_out}", highlight=False)


def select_pool(config: Config, exclude: frozenset[str]) -> Pool:
    """The pool of a run's probe; raises :class:`ConfigurationError` without a probe or without a usable task."""
    path = probe_file(config)
    rows = read_rows(path)
    if not rows:
        raise ConfigurationError(f"{path} holds no attempt: run bin/probe first")
    heldout = exclude | {task.id for task in heldout_tasks(config)}
    return build_pool(training_candidates(config), rows, config.curation, heldout)


def _read_ids(path: Path) -> frozenset[str]:
    try:
        ids = path.read_text().split()
    except OSError as error:
        raise ConfigurationError(f"cannot read --exclude {path}: {error.strerror}") from error
    if not ids:
        raise ConfigurationError(f"--exclude {path} names no task id: leave the option out to exclude none")
    return frozenset(ids)


if __name__ == "__main__":
    app()
