"""What the log says of every task's pass rate as of a step.

Invariant: a pure fold over the probe's counts and the manifests of earlier steps, each group counted once, in the step
that ran it. So an engine that is restarted in mid-step believes what the one before it believed. The policy changes, so
evidence loses a share ``forgetting`` of its weight with every step, and a task that nobody visits drifts back to
Jeffreys' prior.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from protocol.records import Batch
from rollout_engine.curation.bands import BANDS, assign_band, band_masses
from rollout_engine.curation.calibration import Calibration
from rollout_engine.curation.posterior import Posterior, jeffreys

Counts = tuple[int, int]
"""(clean attempts, passes)."""


@dataclass
class _Evidence:
    attempts: float
    passes: float
    step: int
    """As of which the two are weighed."""


class TaskBeliefs:
    """Posteriors of tasks by id. ``probed``: what the probe counted before step 0; a task it doesn't name has none."""

    def __init__(self, probed: Mapping[str, Counts], forgetting: float):
        self._keep = 1.0 - forgetting
        self._calibration = Calibration(self._keep)
        self._observed = 0
        """Step of the last batch taken up."""
        self._evidence = {task: _Evidence(attempts, passes, 0) for task, (attempts, passes) in probed.items()}

    def observe(self, batch: Batch) -> None:
        """Take up the groups that ``batch`` ran; give batches in the order of their steps."""
        # Those carried over were counted in the step that ran them.
        groups = [group for group in batch.groups if group.trajectories[0].step == batch.step]
        self._calibration.fade(batch.step - self._observed)
        self._observed = batch.step
        predicted = [self.posterior(group.task, batch.step).mixed(len(group.rewards)) for group in groups]
        for chance, group in zip(predicted, groups, strict=True):
            self._calibration.observe(chance, len(set(group.rewards)) > 1)
        for group in groups:
            evidence = self._evidence.setdefault(group.task, _Evidence(0.0, 0.0, batch.step))
            attempts, passes = self._weighed(evidence, batch.step)
            evidence.attempts = attempts + len(group.rewards)
            evidence.passes = passes + sum(reward >= 1.0 for reward in group.rewards)
            evidence.step = batch.step

    def posterior(self, task: str, step: int) -> Posterior:
        """As of the beginning of ``step``."""
        evidence = self._evidence.get(task)
        return jeffreys(*self._weighed(evidence, step)) if evidence else jeffreys(0, 0)

    def mixed(self, task: str, step: int, attempts: int) -> float:
        """Chance that a group of ``attempts`` comes out mixed in ``step``, corrected by how often such predictions came
        true so far."""
        return self._calibration.chance(self.posterior(task, step).mixed(attempts))

    def histogram(self, tasks: Iterable[str], step: int) -> dict[str, int]:
        """Tasks by difficulty band, hardest first."""
        bands = Counter(assign_band(band_masses(self.posterior(task, step))) for task in tasks)
        return {band: bands[band] for band in BANDS}

    def _weighed(self, evidence: _Evidence, step: int) -> tuple[float, float]:
        weight = self._keep ** (step - evidence.step)
        return weight * evidence.attempts, weight * evidence.passes
