"""The scripted user: knows the task's facts, answers what is asked, ends the conversation otherwise.

Invariant: a pure function of the task and the visible conversation. It never volunteers a fact, never
invents one, and ends after a bounded number of answers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from protocol.records import Message
from rollout_engine.environments.families import ENTITY
from rollout_engine.environments.task import Task
from rollout_engine.users.user import visible

UNKNOWN = "i do not know ."

MAX_ANSWERS = 6


class ScriptedUser:
    """Answers a question that names a fact: "which booking ?" with "booking B417 ."."""

    calls = ()

    def __init__(self, facts: Mapping[str, str], max_answers: int = MAX_ANSWERS) -> None:
        self._answers: dict[str, str] = {}
        for fact, value in facts.items():  # facts that one word asks for are told together
            told = self._answers.get(keyword(fact))
            self._answers[keyword(fact)] = f"{told} {answer(fact, value)}" if told else answer(fact, value)
        self._max_answers = max_answers

    async def reply(self, messages: Sequence[Message]) -> str | None:
        talk = visible(messages)
        if not talk or talk[-1].role != "assistant" or not talk[-1].content.rstrip().endswith("?"):
            return None
        given = sum(message.role == "user" for message in talk) - 1
        if given >= self._max_answers:
            return None
        asked = re.findall(r"\w+", talk[-1].content.lower())
        known = [self._answers[word] for word in dict.fromkeys(asked) if word in self._answers]
        return " ".join(known) or UNKNOWN


def keyword(fact: str) -> str:
    """The word of a question that asks for a fact: "booking" for ``booking_id``."""
    return fact.removesuffix("_id").split("_")[-1]


def answer(fact: str, value: str) -> str:
    """How the user tells a fact: an id with its noun, anything else alone."""
    return f"{keyword(fact)} {value} ." if ENTITY.fullmatch(value) else f"{value} ."


def scripted_user(task: Task) -> ScriptedUser:
    """The user of a task."""
    return ScriptedUser(task.facts)
