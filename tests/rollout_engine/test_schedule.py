"""Which task a group runs: evenly, or by the chance of a mixed group, and the same after a restart."""

from collections import Counter
from types import SimpleNamespace

import pytest

from protocol.config import TaskSampling
from rollout_engine.schedule import Schedule, task_for

POOL = [f"t{i}" for i in range(10)]
TASKS = [SimpleNamespace(id=f"t{i}") for i in range(40)]


def schedule(step=0, seed=7, chance=lambda task: 0.5, exploration=0.25, mode="adaptive", groups=8):
    return Schedule(TASKS, TaskSampling(mode, exploration=exploration), seed, step, groups, chance)


def drawn(count, **options):
    made = schedule(**options)
    return [made.task(group).id for group in range(count)]


def test_first_choices_visit_every_task_equally_often():
    seen = Counter(task_for(POOL, 7, step, group, 4) for step in range(25) for group in range(4))
    assert seen == Counter({task: 10 for task in POOL})


def test_the_same_place_gives_the_same_task_and_another_seed_another_order():
    order = [task_for(POOL, 7, 0, group, 4) for group in range(14)]
    assert order == [task_for(POOL, 7, 0, group, 4) for group in range(14)]
    assert order != [task_for(POOL, 8, 0, group, 4) for group in range(14)]
    assert sorted(order[4:]) == sorted(POOL)


def test_fixed_mode_is_the_even_walk_whatever_is_believed():
    by_chance = drawn(20, mode="fixed", step=3, chance=lambda task: 0.9 if task.id == "t1" else 0.1)
    assert by_chance == [task_for(TASKS, 7, 3, group, 8).id for group in range(20)]


def test_adaptive_draws_are_a_function_of_seed_step_and_beliefs_in_any_order_of_asking():
    one, other = schedule(step=5), schedule(step=5)
    backwards = [other.task(group).id for group in reversed(range(100))][::-1]
    assert [one.task(group).id for group in range(100)] == backwards
    assert drawn(40, step=5) != drawn(40, step=6) and drawn(40, step=5) != drawn(40, step=5, seed=8)
    assert sorted(backwards[:40]) == sorted(task.id for task in TASKS), "no task twice before the pool is through"
    assert sorted(backwards[40:80]) == sorted(task.id for task in TASKS)


def test_adaptive_draws_favour_tasks_that_are_likely_to_come_out_mixed():
    def chance(task):
        return 0.9 if int(task.id[1:]) < 10 else 0.1

    seen = Counter(task for step in range(200) for task in drawn(8, step=step, chance=chance, exploration=0.0))
    likely = sum(seen[f"t{i}"] for i in range(10))
    # Odds of the first draw 9 to 3; the ten likely ones run out as a step goes on.
    assert 0.60 < likely / 1600 < 0.75
    assert min(seen.values()) > 0


@pytest.mark.parametrize("exploration", [0.125, 0.25, 1.0])
def test_no_task_starves_even_if_it_never_looks_worth_it(exploration):
    share = round(8 * exploration)
    hopeless = {"chance": lambda task: 1e-9, "exploration": exploration}
    visited = [task for step in range(40 // share) for task in drawn(share, step=step, **hopeless)]
    assert sorted(visited) == sorted(task.id for task in TASKS)
    made = schedule(chance=lambda task: 0.3)
    assert [made.chance(group) for group in range(60)] == [0.3] * 60
