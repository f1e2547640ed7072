"""Where curation and evaluation keep what they make, inside a run's folder.

Invariant: these paths are made only here, and depend on the configuration alone, so that each verb finds
what another one left.
"""

from __future__ import annotations

import re
from pathlib import Path

from protocol.config import Config
from rollout_engine.errors import ConfigurationError


def probe_file(config: Config) -> Path:
    """Probe attempts: one row an attempt."""
    return config.path / "probe.jsonl"


def pool_file(config: Config) -> Path:
    return config.path / "pool.json"


def evaluation_file(config: Config, label: str) -> Path:
    """Evaluation attempts of the policy called ``label``: base, trained.

    Raises :class:`ConfigurationError` for a label that would name a file elsewhere.
    """
    if not re.fullmatch(r"\w[\w.-]*", label):
        raise ConfigurationError(f"--label {label!r} names a file: use letters, digits, dots, hyphens and underscores")
    return config.path / "evaluation" / f"{label}.jsonl"


def transcripts_file(attempts: Path) -> Path:
    """Whole trajectories of a file of attempts, beside it; a re-run attempt's later line counts."""
    return attempts.with_suffix(".transcripts.jsonl")


def seconds_file(config: Config) -> Path:
    """Wall seconds by stage of the main job: ``{stage: seconds}``."""
    return config.path / "seconds.json"


def metrics_file(config: Config) -> Path:
    """The learner's metrics, one JSON line an update."""
    return config.path / "metrics.jsonl"


def log_folder(config: Config) -> Path:
    """Where a run's log is looked for when it was exported to files."""
    return config.path / "log"


def report_file(config: Config) -> Path:
    return config.path / "report.json"


def page_file(config: Config) -> Path:
    return config.path / "report.html"
