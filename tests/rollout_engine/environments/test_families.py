"""The generators: what an agent must be able to learn from, and what must not leak between splits."""

import re
from collections import Counter
from functools import cache

import pytest

from protocol.records import ToolCall
from rollout_engine.environments import texts
from rollout_engine.environments.backend import replay
from rollout_engine.environments.catalogue import DOMAINS, domain
from rollout_engine.environments.families import ENTITY
from rollout_engine.environments.rules import check_disjoint, check_split, check_task, entities
from rollout_engine.environments.task import Say

FAMILIES = [(name, family) for name in DOMAINS for family in domain(name).families]
TASKS_A_FAMILY = 40
SAID_BY_POLICY = {100, 50, 40, 20}
"""Amounts that the policy text names; every other amount must be readable in the conversation."""

pytestmark = pytest.mark.parametrize(
    ("name", "family"), FAMILIES, ids=[f"{name}-{family.name}" for name, family in FAMILIES]
)


@cache
def tasks_of(name, family, split="train", count=TASKS_A_FAMILY):
    return [family.task(name, split, seed) for seed in range(count)]


def test_rule_5_holds_for_every_task(name, family):
    for task in tasks_of(name, family):
        check_task(domain(name), task)


def test_splits_share_no_entity(name, family):
    train, heldout = tasks_of(name, family), tasks_of(name, family, "heldout")
    check_split(train)
    check_split(heldout)
    check_disjoint(train, heldout)
    for task in heldout:
        # Subject and another record: two each of guest, record, payment and ticket at least.
        assert len(entities(task)) >= 8
        assert {sum(int(digit) for digit in entity[1:]) % 5 for entity in entities(task)} == {0}


def test_ids_and_amounts_are_copied_never_computed(name, family):
    for task in tasks_of(name, family):
        results, _ = replay(domain(name), task, task.oracle)
        answers = iter(results)
        seen = task.opening
        for turn in task.script:
            if isinstance(turn, Say):
                seen += " ".join(task.facts.values()) if turn.text.endswith("?") else ""
                continue
            for parameter, value in turn.arguments.items():
                if ENTITY.fullmatch(str(value)) or (isinstance(value, int) and value not in SAID_BY_POLICY):
                    assert re.search(rf"\b{value}\b", seen), f"{task.id}: {parameter}={value} is not in {seen}"
            seen += next(answers).text


def test_the_right_actions_depend_on_the_state(name, family):
    shapes = Counter(tuple(call.name for call in task.oracle) for task in tasks_of(name, family))
    resolutions = Counter(task.oracle[-1].arguments["resolution"] for task in tasks_of(name, family))
    assert len(shapes) >= 2
    assert len(resolutions) >= 2
    assert max(resolutions.values()) <= 0.85 * TASKS_A_FAMILY


def test_a_third_of_the_openings_withholds_a_fact(name, family):
    tasks = tasks_of(name, family)
    asking = [task for task in tasks if isinstance(task.script[0], Say)]
    assert abs(len(asking) - TASKS_A_FAMILY / 3) < 3
    for task in asking:
        (fact,) = [fact for fact, text in texts.QUESTIONS.items() if text == task.script[0].text]
        assert task.facts[fact] not in task.opening.split()
    for task in tasks:
        assert "[" not in task.opening and "{" not in task.opening and "  " not in task.opening
        if task not in asking:
            assert all(value in task.opening.split() for value in task.facts.values())


def test_every_task_has_one_main_slip_and_says_known_texts(name, family):
    for task in tasks_of(name, family):
        assert sum(slip.main for slip in task.slips) == 1
        assert 1 <= len(task.slips) <= 3
        assert len({slip.name for slip in task.slips}) == len(task.slips)
        for script in (task.script, *(slip.script for slip in task.slips)):
            spoken = [turn.text for turn in script if isinstance(turn, Say)]
            assert spoken[-1] in texts.FINAL_TEXTS
            assert set(spoken[:-1]) <= set(texts.QUESTIONS.values())
            assert sum(isinstance(turn, ToolCall) for turn in script) <= 5


def test_openings_are_short_and_varied(name, family):
    openings = [task.opening for task in tasks_of(name, family)]
    assert max(len(opening.split()) for opening in openings) <= 14
    assert len({re.sub(r"[A-Z]\d{3}", "ID", opening) for opening in openings}) >= 4
    assert all(re.fullmatch(r"[a-z ,.?]*", re.sub(r"[A-Z]\d{3}|\b\d\b", "", opening)) for opening in openings)
