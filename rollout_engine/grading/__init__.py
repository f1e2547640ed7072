"""Grading: the terminal database against the expected one, row by row."""

from rollout_engine.grading.blame import verdict
from rollout_engine.grading.grader import expected_snapshot, grade

__all__ = ["expected_snapshot", "grade", "verdict"]
