"""What a trained episode costs, on the benchmark's pool and with its failures, over a few steps."""

import random

import trio
from trio.testing import MockClock

from benchmarks import fill


def test_a_trained_episode_costs_little_more_than_the_optimum_and_far_less_than_discarding_groups():
    steps, tasks = 8, fill.pool(random.Random(0))

    def timed(run, *args):
        return trio.run(run, *args, clock=MockClock(autojump_threshold=0))

    ours = timed(fill.ours, "ours", tasks, steps, fill.settings(steps, "fixed", 0.8, 1000))
    discarding = timed(fill.discarding, tasks, steps, 1000)
    optimum = fill.optimum(tasks, "optimum")
    assert ours.trained == discarding.trained == steps * fill.GROUPS * fill.SIZE
    assert ours.cost < 1.15 * optimum.cost
    assert discarding.cost > 1.3 * ours.cost
    assert max(ours.waves) <= 3
