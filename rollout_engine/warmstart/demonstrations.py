"""Imperfect scripted demonstrations: the oracle's way through a task, or a sloppy agent's.

Invariant: a demonstration is the token stream that the engine itself would have recorded, made by the
same conversation, interpretation and tools. It is played on the backend directly, since nothing is
concurrent here.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from protocol.records import Message, ToolCall
from rollout_engine.actors.policy import Generation
from rollout_engine.environments.backend import Backend
from rollout_engine.environments.catalogue import domain
from rollout_engine.environments.task import Say, Task, Turn
from rollout_engine.tokens.conversation import Conversation
from rollout_engine.tokens.interpretation import render_call
from rollout_engine.tokens.template import ChatTemplate
from rollout_engine.users import scripted_user

OTHER_SLIP_RATE = 0.08
"""How often a sloppy agent makes a mistake that is not about the family's own decision."""

MAIN_SLIP_RATES = (0.2, 0.75)
"""The family's own decision goes wrong at a rate between these, evenly spread over a domain's families, so
that some families are nearly solved by the base policy and others rarely."""


@dataclass(frozen=True)
class Demonstration:
    """``ids`` int32 [T] and ``mask`` uint8 [T]: 0 other, 1 the agent's, 2 the agent's and copied from the context."""

    ids: np.ndarray
    mask: np.ndarray


def choose_script(task: Task, main_rate: float, rng: random.Random) -> Sequence[Turn]:
    """The oracle's script, or one of the task's slips."""
    for slip in task.slips:
        if rng.random() < (main_rate if slip.main else OTHER_SLIP_RATE):
            return slip.script
    return task.script


def main_slip_rate(task: Task) -> float:
    """Rate of the main slip in the task's family."""
    names = sorted(family.name for family in domain(task.domain).families)
    low, high = MAIN_SLIP_RATES
    return low + (high - low) * names.index(task.family) / max(1, len(names) - 1)


async def play(template: ChatTemplate, task: Task, script: Sequence[Turn]) -> Conversation:
    """Play ``script`` on a fresh backend, with the task's scripted user."""
    where, user = domain(task.domain), scripted_user(task)
    conversation = Conversation(template, where.policy, where.tools)
    conversation.observe(Message("user", task.opening))
    backend = Backend(where, task.rows)
    for turn in script:
        text = turn.text if isinstance(turn, Say) else render_call(turn, where.tools)
        ids = [*template.encode(text), template.close_id]
        message = conversation.add_generation(Generation(ids, [0.0] * len(ids), [0] * len(ids), "stop"))
        if message.calls:
            conversation.observe(*(_result(backend, call) for call in message.calls))
            continue
        reply = await user.reply(conversation.messages)
        if reply is None:
            break
        conversation.observe(Message("user", reply))
    backend.close()
    return conversation


def told_words(tasks: Sequence[Task]) -> list[str]:
    """Words that users tell as facts and agents pass on, such as a city's name."""
    return sorted({value for task in tasks for value in task.facts.values() if value.isalpha()})


@dataclass(frozen=True)
class CopiedPieces:
    """Which token ids spell what an agent copies from its context: entity ids and amounts, whose capitals and
    digits are tokens of their own, and the facts that a user tells, such as a city, where they are one word."""

    capitals: np.ndarray
    digits: np.ndarray
    words: np.ndarray

    @classmethod
    def of(cls, template: ChatTemplate, tasks: Sequence[Task]) -> CopiedPieces:
        words = [ids[0] for ids in map(template.encode, told_words(tasks)) if len(ids) == 1]
        capitals, digits = template.encode("ABCDEFGHIJKLMNOPQRSTUVWXYZ"), template.encode("0123456789")
        return cls(np.array(capitals), np.array(digits), np.array(words, int))

    def mark(self, conversation: Conversation) -> Demonstration:
        """The conversation's tokens. The first digit of an amount isn't marked as copied: which amount is
        meant is a decision, and only what follows is a copy."""
        tokens = conversation.arrays().unpack()
        capital, digit = np.isin(tokens.ids, self.capitals), np.isin(tokens.ids, self.digits)
        follows = np.concatenate([[False], (capital | digit)[:-1]])
        copied = capital | digit & follows | np.isin(tokens.ids, self.words)
        mask = tokens.mask.copy()
        mask[(mask == 1) & copied] = 2
        return Demonstration(tokens.ids, mask)


def _result(backend: Backend, call: ToolCall) -> Message:
    if call.error is not None:
        return Message("tool", call.error, name=call.name, is_error=True)
    result = backend.call(call.name, call.arguments)
    return Message("tool", result.text, name=call.name, is_error=result.is_error)


def stack(demonstrations: Sequence[Demonstration]) -> dict[str, np.ndarray]:
    """Arrays of ``demonstrations.npz``: ``ids`` int32 [N], ``mask`` uint8 [N], ``offsets`` int64 [M + 1]."""
    lengths = [len(demonstration.ids) for demonstration in demonstrations]
    return {
        "ids": np.concatenate([d.ids for d in demonstrations]).astype(np.int32),
        "mask": np.concatenate([d.mask for d in demonstrations]).astype(np.uint8),
        "offsets": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
    }
