from collections import Counter

from rollout_engine.schedule import task_for

POOL = [f"t{i}" for i in range(10)]


def test_first_choices_visit_every_task_equally_often():
    seen = Counter(task_for(POOL, 7, step, group, 4) for step in range(25) for group in range(4))
    assert seen == Counter({task: 10 for task in POOL})


def test_the_same_place_gives_the_same_task_and_another_seed_another_order():
    order = [task_for(POOL, 7, 0, group, 4) for group in range(14)]
    assert order == [task_for(POOL, 7, 0, group, 4) for group in range(14)]
    assert order != [task_for(POOL, 8, 0, group, 4) for group in range(14)]
    assert sorted(order[4:]) == sorted(POOL)
