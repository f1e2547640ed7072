"""A case: everything of one test that an episode needs, put together.

Invariant: a case stands alone. It refers to no file of its data set, and it equals the case read back from its
hydrated JSON line, but for the place in the file.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import msgspec

from rollout_engine.environments.thinkingbox.dataset.errors import DatasetError
from rollout_engine.environments.thinkingbox.dataset.merging import merge_world
from rollout_engine.environments.thinkingbox.dataset.schema import (
    AgentFile,
    HistoryMessage,
    ToolDefinition,
    ToolOverride,
)
from rollout_engine.environments.thinkingbox.dataset.tags import Tags

DEFAULT_USER_TURNS = 10

GOLDEN = "golden_test_case"
"""Key of a server's init config that holds the calls which solve the task."""


class Fixture(msgspec.Struct, frozen=True):
    """What a test may take as a parameter: a class or function by its dotted path, and its set arguments."""

    type: str
    arguments: dict[str, Any] = {}


class Agent(AgentFile):
    name: str


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    world_state: dict[str, Any]
    tools: tuple[ToolOverride, ...]
    bot_instructions: str | None = None
    tags: Tags = Tags()
    fixtures: dict[str, Fixture] = {}
    metadata: dict[str, Any] = {}


class GoldenCall(msgspec.Struct, frozen=True):
    """One call of a task's own solution."""

    server: str
    tool: str
    arguments: dict[str, Any]


class _Interaction(msgspec.Struct, frozen=True):
    tool: str
    parameters: dict[str, Any] = {}


class _Golden(msgspec.Struct, frozen=True):
    tool_interactions: list[_Interaction]


@dataclass(frozen=True)
class Case:
    """One hydrated test case. Its dicts and lists are shared between cases: read them only."""

    uid: str
    """``file.py:function``."""
    agent: Agent
    scenario: Scenario
    query: str
    test_code: str
    function: str
    """Name of the test's function in ``test_code``."""
    parameters: tuple[str, ...] = ("x", "judge")
    """What the function takes: x, judge and the names of fixtures."""
    history: tuple[HistoryMessage, ...] | None = None
    bot_instructions: str | None = None
    """The test's own, appended to the scenario's."""
    user_context: str | None = None
    max_user_turns: int = DEFAULT_USER_TURNS
    max_agent_turns: int | None = None
    """None: as many as it takes."""
    init: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The test's own part of the world."""
    tags: Tags = Tags()
    fixtures: dict[str, Fixture] = field(default_factory=dict)
    format_query: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    file: str = ""
    line: int = 0

    def __hash__(self) -> int:
        return hash(self.uid)

    @cached_property
    def world(self) -> dict[str, Any]:
        """{server: init config}, the scenario's under the test's."""
        return merge_world(self.scenario.world_state, self.init)

    @cached_property
    def golden(self) -> tuple[GoldenCall, ...]:
        """The calls that solve the task, where its world embeds them; raises DatasetError where they are malformed."""
        calls: list[GoldenCall] = []
        for server, config in self.world.items():
            if isinstance(config, dict) and config.get(GOLDEN):
                try:
                    golden = msgspec.convert(config[GOLDEN], _Golden)
                except msgspec.ValidationError as error:
                    raise DatasetError(f"{self.uid}: {server}.{GOLDEN}: {error}", self.file, self.line) from error
                calls += [GoldenCall(server, call.tool, call.parameters) for call in golden.tool_interactions]
        return tuple(calls)

    @property
    def instructions(self) -> str | None:
        """The scenario's bot instructions and the test's, or None without either."""
        parts = [text for text in (self.scenario.bot_instructions, self.bot_instructions) if text is not None]
        return "\n".join(parts) if parts else None

    @property
    def builtin_tools(self) -> tuple[ToolDefinition, ...]:
        return self.agent.builtin_tools


def formatted(case: Case, init_result: dict[str, Any]) -> Case:
    """The case as an episode begins it: where it asks for that, its own texts with ``{init[server][key]}`` filled in.

    ``init_result`` is {server: what its init returned}. Raises DatasetError for a placeholder that it can't fill.
    """
    if not case.format_query:
        return case

    def fill(name: str) -> str | None:
        text = getattr(case, name)
        try:
            return text.format(init=init_result) if text else text
        except (LookupError, ValueError, AttributeError, TypeError) as error:
            message = f"{case.uid}: {name} can't be filled from what init returned: {type(error).__name__}: {error}"
            raise DatasetError(message, case.file, case.line) from error

    return replace(case, **{name: fill(name) for name in ("query", "user_context", "bot_instructions")})
