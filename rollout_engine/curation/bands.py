"""Five bands of difficulty, relative to the policy that probed.

Invariant: every posterior belongs to exactly one band, the one with most of its mass; on a tie the harder.
"""

from __future__ import annotations

from rollout_engine.curation.posterior import Posterior

EDGES = (0.08, 0.40, 0.60, 0.90)
"""Inner edges of the bands, as pass rates."""

BANDS = ("rarely_solved", "difficult", "intermediate", "frequently_solved", "nearly_always_solved")
"""Hardest first."""


def band_masses(posterior: Posterior) -> dict[str, float]:
    """Posterior mass by band, hardest first."""
    return dict(zip(BANDS, posterior.masses(EDGES), strict=True))


def assign_band(masses: dict[str, float]) -> str:
    """The band with the largest mass. ``max`` keeps the first of equals, and the hardest comes first."""
    return max(BANDS, key=lambda band: masses[band])
