"""Tests of a task, run in forked children without privileges.

``async with GraderHost() as graders: await graders.run(job, judge)`` gives an :class:`Outcome`. The programs
``zygote.py``, ``trial.py`` and ``standins.py`` are standard library only: they run in a process of their own.
"""

from rollout_engine.grading.child.host import GraderHost
from rollout_engine.grading.child.job import GraderLimits, Job, Outcome

__all__ = ["GraderHost", "GraderLimits", "Job", "Outcome"]
