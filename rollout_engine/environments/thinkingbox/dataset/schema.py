"""The files of a data set, field by field.

Invariant: a field that isn't declared here is refused, except those of an agent that no runner of these files reads.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

UNREAD_BY_ANY_RUNNER = frozenset({"parallel_tool_calls", "inject_after_user", "inject_after_tool"})
"""Fields that agent files carry and that mean nothing."""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class ToolDefinition(_File):
    """A tool that the agent brings along: no server answers it."""

    name: str
    description: str
    input_schema: dict[str, Any]
    direct_response: str | None = None
    is_end_turn: bool = False


class ToolOverride(_File):
    """A server's tool that the agent may see, and what the scenario changes of it."""

    name: str
    override_description: str | None = None
    override_arg_description: dict[str, str] | None = None
    direct_response: str | None = None
    """Format string over the tool's JSON answer, told to the user as the agent's words."""
    is_end_turn: bool = False
    """Calling it ends the episode, and the call isn't sent to the server."""


class AgentFile(_File):
    system_instructions: str
    builtin_tools: tuple[ToolDefinition, ...]


class ScenarioFile(_File):
    world_state: dict[str, Any]
    """{server: init config}, in order of priority: where two serve a tool of one name, the later one counts."""
    tools: tuple[ToolOverride, ...]
    bot_instructions: str | None = None
    tags: Any = ()
    fixtures: dict[str, dict[str, Any]] = {}
    metadata: dict[str, Any] = {}


class ConftestFile(_File):
    fixtures: dict[str, dict[str, Any]] = {}


class TestFields(_File):
    """What the YAML of a test file, or of a function in it, may say of a test."""

    __test__ = False  # it is no test of pytest's

    scenario: str | UnsetType = UNSET
    query: str | UnsetType = UNSET
    user_context: str | None | UnsetType = UNSET
    max_user_sim_turns: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    max_agent_sim_turns: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    bot_instructions: str | None | UnsetType = UNSET
    history: Any = UNSET
    init: dict[str, dict[str, Any]] | UnsetType = UNSET
    format_query: bool | UnsetType = UNSET
    tags: Any = UNSET


class YamlTest(TestFields, kw_only=True):
    """A test of a YAML file."""

    uid: str
    test_code: str
    metadata: dict[str, Any] = {}


class YamlTestFile(_File):
    test_cases: tuple[YamlTest, ...]


class HistoryReference(_File):
    """A slice of a message list of the companion file; ``end`` is left out, "" means all that follow."""

    key: str
    start: int | str
    end: str


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="T"):
    metadata: dict[str, Any] = {}


class Text(_Message, tag=True, kw_only=True):
    role: Literal["system", "user", "assistant"]
    content: str


class ToolCall(_Message, tag=True, kw_only=True):
    name: str
    arguments: dict[str, Any]
    id: str


class ParallelToolCall(_Message, tag=True, kw_only=True):
    tool_calls: tuple[ToolCall, ...]


class ToolResponse(_Message, tag=True, kw_only=True):
    name: str
    content: str
    id: str


HistoryMessage = Text | ToolCall | ParallelToolCall | ToolResponse
"""A message of a recorded conversation, as result files write it too."""


class HistoryItem(_File):
    """For typing one message of any kind."""

    message: HistoryMessage
