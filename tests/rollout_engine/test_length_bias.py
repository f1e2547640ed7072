"""Rule 11: admission in launch order doesn't favour short episodes; admission in finish order, the control, does.

A policy whose long episodes succeed more often: half of all episodes are long, and a long one succeeds with chance 0.8,
a short one with 0.2. By that symmetry a group that comes out mixed has as many long samples as short ones on average,
so an unbiased batch has the lengths of what was launched, exactly half long. Both ways of admission get the same
launched groups.
"""

import heapq
import random
from collections import Counter
from math import comb

import numpy as np
import pytest
from scipy.stats import chi2

from protocol.config import Rollout
from protocol.records import Ledger, Trajectory, TrajectoryId, Verdict
from rollout_engine.batch import BatchState
from rollout_engine.group import GroupResult

STEPS, GROUPS, SIZE = 400, 8, 4
SHORT, LONG = 1.0, 8.0
"""Seconds."""
SUCCESS = {SHORT: 0.2, LONG: 0.8}


def groups_of(step):
    """The groups of a step in launch order, without end: [(seconds, reward)] each, however they are admitted."""
    rng, drawn = random.Random(f"lengths/{step}"), []

    def sample():
        seconds = rng.choice((SHORT, LONG)) * rng.uniform(0.9, 1.1)
        return seconds, float(rng.random() < SUCCESS[SHORT if seconds < 4 else LONG])

    def group(number):
        while len(drawn) <= number:
            drawn.append([sample() for _ in range(SIZE)])
        return drawn[number]

    return group


def long_ones(group):
    return sum(seconds > 4 for seconds, _ in group)


def result(number, group):
    samples = [
        Trajectory(TrajectoryId("r", 0, number, i), "t", "travel", "f", 0, (), Verdict(reward), "done")
        for i, (_, reward) in enumerate(group)
    ]
    return GroupResult(number, "t", samples)


def run_step(group, concurrency):
    """The numbers of the groups that our batch trains on, and of those that finish first, of all launched."""
    settings = Rollout(groups=GROUPS, max_groups=200, group_size=SIZE, wave_confidence=0.9)
    state = BatchState(settings, lambda number: 0.7)
    waiting, running, clock, finished = [], [], 0.0, []
    while not state.done:
        waiting += state.launch()
        while waiting and len(running) < concurrency:
            number = waiting.pop(0)
            heapq.heappush(running, (clock + max(seconds for seconds, _ in group(number)), number))
        clock, number = heapq.heappop(running)
        settled = result(number, group(number))
        finished += [number] * settled.informative
        state.settle(settled)
    for number in state.pending:
        state.settle(GroupResult(number, "t", [None] * SIZE))
    batch = state.close("r", 0, clock, lambda buckets, _: Ledger(len(buckets), **Counter(buckets.values())), {})
    return [record.group for record in batch.groups if record.bucket == "trained"], finished[:GROUPS]


def mixed_law():
    """P(k long samples | mixed), k = 0 … SIZE, in closed form."""
    weights = []
    for k in range(SIZE + 1):
        solved = SUCCESS[LONG] ** k * SUCCESS[SHORT] ** (SIZE - k)
        failed = (1 - SUCCESS[LONG]) ** k * (1 - SUCCESS[SHORT]) ** (SIZE - k)
        weights.append(comb(SIZE, k) * (1 - solved - failed))
    return np.array(weights) / sum(weights)


def p_value(counts, law):
    """Of the hypothesis that groups with k long samples, ``counts`` of each k, are drawn from ``law``."""
    wanted = law * counts.sum()
    return chi2.sf(((counts - wanted) ** 2 / wanted).sum(), len(law) - 1)


@pytest.mark.parametrize("concurrency", [12, 1000])
def test_the_trained_lengths_are_the_launched_ones(concurrency):
    ours, control = np.zeros(SIZE + 1), np.zeros(SIZE + 1)
    for step in range(STEPS):
        group = groups_of(step)
        trained, first = run_step(group, concurrency)
        assert len(trained) == len(first) == GROUPS
        for number in trained:
            ours[long_ones(group(number))] += 1
        for number in first:
            control[long_ones(group(number))] += 1
    law, k = mixed_law(), np.arange(SIZE + 1)
    assert (law * k).sum() / SIZE == pytest.approx(0.5), "what was launched"
    assert p_value(ours, law) > 0.01
    assert (ours * k).sum() / ours.sum() / SIZE == pytest.approx(0.5, abs=0.012)
    assert p_value(control, law) < 1e-12, "the control is biased, so this test would notice"
    assert (control * k).sum() / control.sum() / SIZE < 0.47
