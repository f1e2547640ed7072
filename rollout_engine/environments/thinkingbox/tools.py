"""What an agent sees of the tools, and what calling one does beyond its answer.

Invariant: the agent's own tools come first, then those of the servers that the scenario makes visible, in the servers'
order; a scenario changes words about a tool, never what it takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from rollout_engine.environments.environment import Answer
from rollout_engine.environments.thinkingbox.dataset import Case, ToolOverride
from rollout_engine.errors import ConfigurationError
from rollout_engine.sessions import jsontext
from rollout_engine.sessions.results import CallResult, ToolSpec
from rollout_engine.tokens.toolset import ToolSet, checked_by_server

FAILED_DIRECT = "Error in function execution"
"""What the agent reads where a direct response can't be made of the tool's answer."""


@dataclass(frozen=True)
class Toolbox:
    """``listed``: for the agent; ``ending``: tools whose call ends the conversation; ``direct``: format
    strings, by tool, of what is said to the user after a call; ``builtin``: tools that no server answers."""

    listed: ToolSet
    ending: frozenset[str]
    direct: Mapping[str, str]
    builtin: frozenset[str]

    def answer(self, tool: str, result: CallResult) -> Answer:
        """What the agent reads of a call."""
        template = self.direct.get(tool)
        if template is None:
            return Answer(result.text, result.is_error)
        try:
            return Answer(result.text, result.is_error, direct=template.format(**jsontext.read_text(result.text)))
        except (ValueError, TypeError, LookupError, AttributeError):
            return Answer(FAILED_DIRECT, is_error=True)


def toolbox(case: Case, served: Sequence[ToolSpec]) -> Toolbox:
    """The tools of a case over those that its session serves; one that its scenario shows and no server has is left
    out, as other runners of these files do. Raises :class:`ConfigurationError` naming a tool that two sides bring."""
    overrides = {override.name: override for override in case.scenario.tools}
    listed, ending, direct = [], set(), {}
    for tool in case.builtin_tools:
        listed.append({"name": tool.name, "description": tool.description, "parameters": tool.input_schema})
    for tool in served:
        listed.append(_changed(tool, overrides[tool.name]))
    for tool in (*case.builtin_tools, *overrides.values()):
        if tool.is_end_turn:
            ending.add(tool.name)
        if tool.direct_response is not None:
            direct[tool.name] = tool.direct_response
    builtin = frozenset(tool.name for tool in case.builtin_tools)
    if clash := builtin & overrides.keys():
        raise ConfigurationError(f"agent {case.agent.name} and scenario {case.scenario.name} both have {min(clash)!r}")
    return Toolbox(checked_by_server(listed), frozenset(ending), direct, builtin)


def _changed(tool: ToolSpec, override: ToolOverride) -> dict[str, Any]:
    description, parameters = tool.description, tool.input_schema
    if override.override_description is not None:
        description = override.override_description
    if override.override_arg_description:
        parameters = deepcopy(dict(parameters))
        for name, text in override.override_arg_description.items():
            if not isinstance(parameters.get("properties", {}).get(name), dict):
                raise ConfigurationError(f"override_arg_description of tool {tool.name!r}: no parameter {name!r}")
            parameters["properties"][name]["description"] = text
    return {"name": tool.name, "description": description, "parameters": parameters}
