"""A list of tools, prepared once for interpretation.

Invariant: equal lists are prepared once, whichever of the two usual shapes they have, and a list that
can't be used is refused before any text is read.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rollout_engine.errors import ConfigurationError
from rollout_engine.tokens.messages import template_tools
from rollout_engine.tokens.schema import Compiler, Schema, SchemaError

_KEPT = 64


class Tool:
    """One tool: ``properties`` by name, ``extra`` for names outside them (None: refused), ``whole``."""

    __slots__ = ("extra", "name", "properties", "whole")

    def __init__(self, name: str, parameters: Mapping[str, Any]) -> None:
        compiler = Compiler(parameters)
        self.name = name
        self.whole: Schema = compiler.compile(parameters)
        self.properties = {key: compiler.compile(part) for key, part in parameters.get("properties", {}).items()}
        # A name that the schema doesn't list is allowed only where the schema says so in words: a backend
        # would otherwise drop a misspelt argument silently.
        more = parameters.get("additionalProperties", False)
        self.extra: Schema | None = None if more is False else compiler.compile(more)


class ToolSet:
    """``tools`` by name; ``listed`` as a chat template takes them; ``text``: their JSON."""

    __slots__ = ("listed", "text", "tools")

    def __init__(self, tools: Mapping[str, Tool], listed: list[dict[str, Any]] | None, text: str) -> None:
        self.tools = tools
        self.listed = listed
        self.text = text


_prepared: OrderedDict[bytes, ToolSet] = OrderedDict()


def prepare(tools: Sequence[Mapping[str, Any]] | ToolSet) -> ToolSet:
    """Compile tools; raises :class:`ConfigurationError` naming the tool that can't be used."""
    if isinstance(tools, ToolSet):
        return tools
    try:
        key = msgspec.json.encode(tools)
    except (TypeError, msgspec.MsgspecError) as error:
        raise ConfigurationError(f"tools are JSON objects: {error}") from error
    found = _prepared.get(key)
    if found is None:
        found = _prepared[key] = _compile(key.decode())
        if len(_prepared) > _KEPT:
            _prepared.popitem(last=False)
    return found


def _compile(text: str) -> ToolSet:
    tools = json.loads(text)
    if not isinstance(tools, list):
        raise ConfigurationError(f"tools are a list of {{name, description, parameters}}, not {type(tools).__name__}")
    out: dict[str, Tool] = {}
    for at, entry in enumerate(tools):
        tool = entry.get("function", entry) if isinstance(entry, dict) else None
        if not isinstance(tool, dict) or not isinstance(tool.get("name"), str) or not tool["name"]:
            raise ConfigurationError(f"tool {at} has no name: a tool is {{name, description, parameters}}")
        name = tool["name"]
        if name in out:
            raise ConfigurationError(f"two tools are named {name!r}; rename one")
        parameters = tool.get("parameters", {"type": "object", "properties": {}})
        if not isinstance(parameters, dict):
            raise ConfigurationError(f"the parameters of tool {name!r} are a JSON schema, not {parameters!r}")
        try:
            out[name] = Tool(name, parameters)
        except (SchemaError, AttributeError) as error:
            raise ConfigurationError(f"the parameters of tool {name!r} are no schema: {error}") from error
    return ToolSet(out, template_tools(tools), text)
