"""The training pool: which probed tasks the policy can learn from, and why each other one was left out.

Invariant: every candidate is in the pool file exactly once, with its counts, its posterior and either
``kept`` or the reason it was dropped. The pool stays fixed for a whole run; what is believed of its tasks doesn't
(:mod:`rollout_engine.curation.beliefs`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from protocol.config import Config, Curation
from rollout_engine.curation.bands import BANDS, EDGES, assign_band, band_masses
from rollout_engine.curation.candidates import training_candidates
from rollout_engine.curation.posterior import jeffreys
from rollout_engine.environments.task import Task
from rollout_engine.errors import ConfigurationError
from rollout_engine.evaluation.attempts import AttemptRow, PolicyStamp, duplicates
from rollout_engine.evaluation.files import pool_file

HELD_OUT = "held out"
TOO_FEW = "too few clean attempts"
BAND = "band not kept"
"""Reasons for leaving a candidate out, the first that applies."""


class Candidate(msgspec.Struct, frozen=True):
    """One candidate task and what the probe says of it."""

    task: str
    domain: str
    family: str
    clean: int
    """Attempts with a verdict."""
    passes: int
    system_errors: int
    alpha: float
    beta: float
    """Shape of the posterior Beta(alpha, beta) over the pass rate."""
    interval: tuple[float, float]
    """Equal-tailed 95 % credible interval of the pass rate."""
    masses: dict[str, float]
    """Posterior mass by band."""
    band: str
    kept: bool
    reason: str = ""


class Pool(msgspec.Struct, frozen=True):
    """What ``pool.json`` holds."""

    policy: PolicyStamp | None
    """The policy that probed: bands are relative to it."""
    attempts: int
    """Probe attempts asked for, a task."""
    keep: tuple[str, ...]
    min_clean: int
    edges: tuple[float, ...]
    histogram: dict[str, int]
    """Candidates with enough clean attempts by band, hardest first; those held out aren't candidates."""
    dropped: dict[str, int]
    """Candidates left out, by reason."""
    candidates: tuple[Candidate, ...]

    @property
    def tasks(self) -> list[str]:
        """Ids of the kept tasks, in candidate order."""
        return [candidate.task for candidate in self.candidates if candidate.kept]


def build_pool(
    candidates: Sequence[Task], rows: Sequence[AttemptRow], settings: Curation, heldout: Collection[str]
) -> Pool:
    """Judge every candidate by its probe ``rows``.

    ``heldout``  ids that must never be trained on, whatever their band.

    Raises :class:`ConfigurationError` for an unknown band in ``settings.keep``, for rows that were probed
    twice or by more than one policy, and, showing the histogram, when no task is left.
    """
    if unknown := sorted(set(settings.keep) - set(BANDS)):
        raise ConfigurationError(f"curation.keep names {unknown[0]!r}, which is no band: use {', '.join(BANDS)}")
    if twice := duplicates(rows):
        raise ConfigurationError(f"the probe has {twice[0][0]} attempt {twice[0][1]} more than once")
    policies = {row.policy for row in rows if row.error is None}
    if len(policies) > 1:
        raise ConfigurationError(
            f"the probe mixes {len(policies)} policies, and bands are relative to one: delete its file and probe again"
        )
    by_task: dict[str, list[AttemptRow]] = {}
    for row in rows:
        by_task.setdefault(row.task, []).append(row)
    heldout = frozenset(heldout)
    judged = tuple(_judge(task, by_task.get(task.id, []), settings, heldout) for task in candidates)
    bands = Counter(candidate.band for candidate in judged if candidate.reason not in (HELD_OUT, TOO_FEW))
    pool = Pool(
        policy=next(iter(policies), None),
        attempts=settings.attempts,
        keep=settings.keep,
        min_clean=settings.min_clean,
        edges=EDGES,
        histogram={band: bands[band] for band in BANDS},
        dropped=dict(Counter(candidate.reason for candidate in judged if not candidate.kept)),
        candidates=judged,
    )
    if not pool.tasks:
        raise ConfigurationError(_explain_empty(pool))
    return pool


def _judge(task: Task, rows: Sequence[AttemptRow], settings: Curation, heldout: Collection[str]) -> Candidate:
    clean = sum(row.error is None for row in rows)
    passes = sum(row.passed for row in rows)
    posterior = jeffreys(clean, passes)
    masses = band_masses(posterior)
    band = assign_band(masses)
    if task.id in heldout:
        reason = HELD_OUT
    elif clean < settings.min_clean:
        reason = TOO_FEW
    elif band not in settings.keep:
        reason = BAND
    else:
        reason = ""
    return Candidate(
        task=task.id,
        domain=task.domain,
        family=task.family,
        clean=clean,
        passes=passes,
        system_errors=len(rows) - clean,
        alpha=posterior.alpha,
        beta=posterior.beta,
        interval=posterior.interval(),
        masses=masses,
        band=band,
        kept=not reason,
        reason=reason,
    )


def _explain_empty(pool: Pool) -> str:
    histogram = "\n".join(f"  {band:<22}{count:>5}" for band, count in pool.histogram.items())
    reasons = ", ".join(f"{count} {reason}" for reason, count in pool.dropped.items()) or "there are no candidates"
    most = max(BANDS, key=lambda band: pool.histogram[band])
    if pool.dropped.get(TOO_FEW):
        advice = (
            f"raise curation.attempts ({pool.attempts}) or lower curation.min_clean ({pool.min_clean}), "
            "then run bin/probe again: it runs what is missing"
        )
    elif most == BANDS[0]:
        advice = "the policy is too weak for these tasks: warm-start it longer, or add easier task families"
    elif most == BANDS[-1]:
        advice = "the policy already solves these tasks: add harder task families"
    else:
        advice = f"add {most} to curation.keep (now {', '.join(pool.keep) or 'empty'})"
    return f"the pool has no usable task: {reasons}. Candidates by band:\n{histogram}\nWhat to change: {advice}"


def write_pool(pool: Pool, path: Path) -> None:
    """Write ``pool.json``, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(pool), indent=1))
    partial.replace(path)


def read_pool(path: Path) -> Pool:
    """Read ``pool.json``; raises :class:`ConfigurationError` when it is missing or isn't one."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Pool)
    except FileNotFoundError as error:
        raise ConfigurationError(f"{path} is missing: run bin/probe, then bin/select") from error
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"{path} is not a task pool: {error}. Run bin/select to make it again") from error


def probed_counts(config: Config) -> dict[str, tuple[int, int]]:
    """(clean attempts, passes) of every candidate that the run's ``pool.json`` judged.

    Raises :class:`ConfigurationError` as :func:`read_pool` does.
    """
    return {
        candidate.task: (candidate.clean, candidate.passes) for candidate in read_pool(pool_file(config)).candidates
    }


def load_pool(config: Config) -> list[Task]:
    """The tasks to train on: those that the run's ``pool.json`` keeps, in candidate order.

    Raises :class:`ConfigurationError` when there is no pool, when it keeps nothing, or when it keeps a task
    that this configuration doesn't generate.
    """
    path = pool_file(config)
    kept = read_pool(path).tasks
    by_id = {task.id: task for task in training_candidates(config)}
    if strange := [id for id in kept if id not in by_id]:
        raise ConfigurationError(
            f"{path} keeps {strange[0]}, which isn't a candidate of this configuration (tasks, seed): "
            "run bin/probe and bin/select again"
        )
    if not kept:
        raise ConfigurationError(f"{path} keeps no task: run bin/select again")
    return [by_id[id] for id in kept]
