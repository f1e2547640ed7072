"""A ThinkingBox case as a task of ours.

Invariant: an id names one case of a data set, ``thinkingbox/file.py:test``, whatever was selected beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.records import ToolCall
from rollout_engine.environments.task import Say, Split, Turn
from rollout_engine.environments.thinkingbox.dataset import Case, DatasetError
from rollout_engine.errors import ConfigurationError, NoSolution

PREFIX = "thinkingbox/"

DONE = "<DONE>"
"""At the end of a message of the agent: it holds the conversation for finished."""


@dataclass(frozen=True)
class ThinkingBoxTask:
    """See :class:`~rollout_engine.environments.environment.AnyTask`."""

    case: Case
    split: Split
    seed: int = 0

    @property
    def id(self) -> str:
        return PREFIX + self.case.uid

    @property
    def domain(self) -> str:
        """The case's domain tag, where it has one."""
        return self.case.tags.domain or "thinkingbox"

    @property
    def family(self) -> str:
        return self.case.scenario.name

    @property
    def script(self) -> tuple[Turn, ...]:
        """The case's own solution and a last message. Raises NoSolution where its world embeds none."""
        try:
            calls = self.case.golden
        except DatasetError as error:
            raise ConfigurationError(str(error)) from error
        if not calls:
            raise NoSolution(f"task {self.id} embeds no golden calls, so the oracle can't play it")
        return (*(ToolCall(call.tool, call.arguments) for call in calls), Say(f"All of it is done. {DONE}"))

    def __hash__(self) -> int:
        return hash(self.case.uid)
