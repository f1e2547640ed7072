"""The seam between an episode and the domain that it is played in.

Invariant: an episode knows a domain by this page alone. What an agent can get wrong is an answer to it,
never raised; what a stage raises is an :class:`~rollout_engine.errors.EpisodeSystemError`, which the agent had no
part in (rule 1). A stage is entered and left in one task, and after :meth:`Stage.finish` no call reaches its
backend, so a late write never changes a grade (rule 4).
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from protocol.records import FinishReason, Message, ModelCall, ToolCall, TrajectoryId, Verdict
from rollout_engine.environments.task import Turn
from rollout_engine.tokens.toolset import ToolSet


class AnyTask(Protocol):
    """What the engine reads of a task, whatever its domain."""

    id: str
    domain: str
    family: str
    seed: int

    @property
    def script(self) -> Sequence[Turn]:
        """A right way through, as the agent's turns: what the oracle policy plays. Raises
        :class:`~rollout_engine.errors.ConfigurationError` for a task that doesn't tell one."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """What the agent reads of a call. ``direct``: what the tool then says to the user in the agent's name."""

    text: str
    is_error: bool = False
    direct: str | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """Instead of a user's reply: the conversation is over. ``said``: the user's last words, which nobody answers."""

    reason: FinishReason
    said: str | None = None


@dataclass(frozen=True, slots=True)
class Play:
    """A finished conversation, for the grader."""

    messages: tuple[Message, ...]
    finish: FinishReason


class Stage(Protocol):
    """One episode's environment, open.

    ``opening``      messages before the agent's first turn: system messages, a history, the user's query.
    ``tools``        what the agent may call.
    ``agent_turns``  the task's own bound on the agent's turns; None for none but the run's.
    ``ending``       tools whose call ends the conversation and isn't carried out.
    ``ranking``      whose ranking its knowledge search has; empty where it has none.
    ``calls``        what has been asked of the user's and the judge's models so far.
    """

    opening: tuple[Message, ...]
    tools: Sequence[Mapping[str, Any]] | ToolSet
    agent_turns: int | None
    ending: frozenset[str]
    ranking: str

    @property
    def calls(self) -> Sequence[ModelCall]: ...

    async def call(self, call: ToolCall) -> Answer:
        """Carry out a call that was understood; its ``arguments`` are set."""
        ...

    def ends(self, said: Message) -> FinishReason | None:
        """Whether these words of the agent, without a call, end the conversation."""
        ...

    async def reply(self, messages: tuple[Message, ...]) -> str | Ended:
        """The user's answer to the agent's last message, or the end."""
        ...

    async def finish(self) -> Any:
        """Close the backend to the agent, then read it: the terminal state."""
        ...

    async def grade(self, state: Any, play: Play) -> Verdict:
        """The verdict on a terminal state. Raises :class:`~rollout_engine.errors.GraderError` when there is none."""
        ...


class Environment(Protocol):
    def open(self, task: Any, id: TrajectoryId, seed: int) -> AbstractAsyncContextManager[Stage]:
        """A fresh stage for episode ``id`` of ``task``; ``seed`` is that of everything random in it."""
        ...


def episode_seed(task: AnyTask, id: TrajectoryId) -> int:
    """The seed of everything random in an episode's environment, in [0, 2**32). A sample that runs again after a
    system error has the same one."""
    return zlib.crc32(f"{task.id} {id.run}/{id.step}/{id.group}/{id.sample}".encode())
