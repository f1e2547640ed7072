"""No headline without full coverage.

Invariant: figures are only ever made from rows that have every task x attempt exactly once, each with a
verdict, all of one policy. A missing, doubled or failed attempt would bias the mean without a trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollout_engine.errors import ConfigurationError
from rollout_engine.evaluation.attempts import AttemptRow, Key, PolicyStamp, duplicates

_SHOWN = 5


@dataclass(frozen=True)
class Coverage:
    """What keeps a set of rows from being a campaign."""

    expected: int
    missing: tuple[Key, ...]
    duplicate: tuple[Key, ...]
    unexpected: tuple[Key, ...]
    """Keys that the campaign didn't ask for."""
    errors: tuple[tuple[Key, str], ...]
    """Keys without a verdict, and the kind of system error."""
    policies: tuple[PolicyStamp, ...]
    """Distinct policies of the graded rows: one, or the rows can't be averaged."""

    @property
    def complete(self) -> bool:
        return not (self.missing or self.duplicate or self.unexpected or self.errors or len(self.policies) > 1)

    def require(self, source: str) -> None:
        """Raise :class:`ConfigurationError` saying what is wrong with ``source``, unless complete."""
        if self.complete:
            return
        lines = [f"no headline for {source}: {self.expected} attempts expected, each once, with a verdict"]
        lines += _listing("missing", self.missing)
        lines += _listing("more than once", self.duplicate)
        lines += _listing("not asked for", self.unexpected)
        lines += _listing("without a verdict", [(task, f"{n}: {kind}") for (task, n), kind in self.errors])
        if len(self.policies) > 1:
            lines += [f"  more than one policy: {', '.join(map(_policy, self.policies))}"]
        if self.missing or self.errors:
            lines.append("Run the same command again: it runs what is missing or failed and keeps the rest")
        if self.unexpected or self.duplicate or len(self.policies) > 1:
            lines.append("These rows can't make one campaign: name another file, or delete this one to start over")
        raise ConfigurationError("\n".join(lines))


def check_coverage(rows: Sequence[AttemptRow], tasks: Sequence[str], attempts: int) -> Coverage:
    """Compare ``rows`` with ``tasks`` (ids) x ``attempts``."""
    expected = {(task, attempt) for task in tasks for attempt in range(attempts)}
    present = {row.key for row in rows}
    policies = {row.policy for row in rows if row.error is None}
    return Coverage(
        expected=len(expected),
        missing=tuple(sorted(expected - present)),
        duplicate=tuple(duplicates(rows)),
        unexpected=tuple(sorted(present - expected)),
        errors=tuple(sorted((row.key, row.error.kind) for row in rows if row.error is not None)),
        policies=tuple(sorted(policies, key=str)),
    )


def _listing(what: str, keys: Sequence[tuple[str, object]]) -> list[str]:
    if not keys:
        return []
    shown = [f"    {task} attempt {attempt}" for task, attempt in keys[:_SHOWN]]
    more = [f"    and {len(keys) - _SHOWN} more"] if len(keys) > _SHOWN else []
    return [f"  {len(keys)} {what}:", *shown, *more]


def _policy(policy: PolicyStamp) -> str:
    return f"{policy.label} version {policy.version} {policy.digest}".strip()
