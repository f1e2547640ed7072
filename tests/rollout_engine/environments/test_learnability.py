"""Figures over all families that a tiny policy depends on."""

import re
from pathlib import Path
from statistics import mean, median

import pytest

import rollout_engine.environments
from rollout_engine.environments import texts
from rollout_engine.environments.backend import replay
from rollout_engine.environments.catalogue import DOMAINS, domain
from rollout_engine.environments.families import Draw, split_of
from rollout_engine.environments.registry import generate
from rollout_engine.environments.task import Say

TASKS = generate(DOMAINS, "train", 400)


def sampled_tokens(task):
    """Agent tokens when each syntax line, word, letter and digit is one, and each turn ends with one."""
    count = 0
    for turn in task.script:
        if isinstance(turn, Say):
            count += len(turn.text.split()) + 1
        else:
            values = " ".join(map(str, turn.arguments.values()))
            count += 3 + 2 * len(turn.arguments) + len(re.findall(r"[a-z_]+|[A-Z0-9]", values))
    return count


def test_requests_and_tokens_an_episode():
    assert median(len(task.script) for task in TASKS) == 4
    assert max(len(task.script) for task in TASKS) == 7
    assert 38 <= mean(map(sampled_tokens, TASKS)) <= 44
    assert max(map(sampled_tokens, TASKS)) <= 80


def test_at_most_200_words_in_all():
    said = [*texts.FINAL_TEXTS, *texts.QUESTIONS.values(), *texts.ERRORS, *(task.opening for task in TASKS)]
    for task in TASKS:
        said += [result.text for result in replay(domain(task.domain), task, task.oracle)[0]]
        said += [str(value) for call in task.oracle for value in call.arguments.values()]
    words = set(re.findall(r"[a-z_]+", " ".join(said)))
    assert 150 <= len(words) <= 200


def test_amounts_have_at_most_four_digits_and_ids_three():
    for task in TASKS:
        for result in replay(domain(task.domain), task, task.oracle)[0]:
            assert all(len(digits) <= 4 for digits in re.findall(r"\d+", result.text))


@pytest.mark.parametrize("name", DOMAINS)
def test_policies_are_short_lines(name):
    lines = domain(name).policy.strip().split("\n")
    assert 6 <= len(lines) <= 10
    assert all(re.fullmatch(r"[a-z0-9 :,.]+", line) for line in lines)


@pytest.mark.parametrize("name", DOMAINS)
def test_at_least_eight_families_and_calls_of_one_to_three_parameters(name):
    assert len(domain(name).families) == 10
    for tool in domain(name).tools:
        assert 1 <= len(tool["parameters"]["properties"]) <= 3
        assert tool["parameters"]["additionalProperties"] is False
        assert "title" not in str(tool)


def test_error_phrases_are_a_closed_set():
    folder = Path(rollout_engine.environments.__file__).parent
    sources = "".join(path.read_text() for path in folder.rglob("*.py"))
    raised = set(re.findall(r'(?:ToolFailure|failure)\("([^"]+)"\)', sources))
    assert raised == set(texts.ERRORS)


def test_split_of_an_entity():
    assert split_of("B555") == "heldout"
    assert split_of("B000") == "heldout"
    assert split_of("B417") == "train"
    with pytest.raises(ValueError, match="not an entity id"):
        split_of("B41")


@pytest.mark.parametrize(("split", "numbers"), [("train", 800), ("heldout", 200)])
def test_a_draw_reaches_every_number_of_its_split_once(split, numbers):
    draw = Draw("travel", "x", split, 0)
    assert len({draw.entity("B") for _ in range(numbers)}) == numbers


@pytest.mark.parametrize("count", [10, 100])
def test_variants_come_in_proportion(count):
    weights = {"a": 0.5, "b": 0.3, "c": 0.2}
    draws = [Draw("travel", "x", "train", seed).variant(weights) for seed in range(count)]
    for name, weight in weights.items():
        assert abs(draws.count(name) - weight * count) <= 1.5
