"""A list of tools, prepared once for interpretation.

Invariant: equal lists are prepared once, whichever of the three usual shapes they have, and a list that
can't be used is refused before any text is read.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rollout_engine.errors import ConfigurationError
from rollout_engine.tokens.messages import template_tools, tool_function
from rollout_engine.tokens.schema import Compiler, Schema, SchemaError

_KEPT = 256
"""Lists of tools kept, the last used: one a domain, or one a task where tasks choose their tools."""


class Tool:
    """One tool: ``properties`` by name, ``extra`` for names outside them (None: refused), ``whole``."""

    __slots__ = ("extra", "name", "properties", "whole")

    def __init__(self, name: str, parameters: Mapping[str, Any]) -> None:
        compiler = Compiler(parameters)
        self.name = name
        self.whole: Schema = compiler.compile(parameters)
        parts = compiler.parts(parameters)
        self.properties = _properties(compiler, parts)
        # A name that the schema doesn't list is allowed only where the schema says so in words: a backend
        # would otherwise drop a misspelt argument silently.
        more = [part["additionalProperties"] for part in parts if part.get("additionalProperties", False) is not False]
        self.extra: Schema | None = compiler.any_of(more) if more else None


class ToolSet:
    """``tools`` by name; ``listed`` as a chat template takes them; ``text``: their JSON. ``server_checks``: whoever
    carries out the calls checks their arguments, and may take more than the schemas say."""

    __slots__ = ("listed", "server_checks", "text", "tools")

    def __init__(
        self, tools: Mapping[str, Tool], listed: list[dict[str, Any]] | None, text: str, server_checks: bool = False
    ) -> None:
        self.tools = tools
        self.listed = listed
        self.text = text
        self.server_checks = server_checks


def _properties(compiler: Compiler, parts: list[Mapping[str, Any]]) -> dict[str, Schema]:
    """Each property that one of ``parts`` lists; where several do, a value may be of any of their types."""
    found: dict[str, list[Any]] = {}
    for part in parts:
        for name, schema in part.get("properties", {}).items():
            found.setdefault(name, []).append(schema)
    return {name: compiler.any_of(schemas) for name, schemas in found.items()}


_prepared: OrderedDict[bytes, ToolSet] = OrderedDict()


def checked_by_server(tools: Sequence[Mapping[str, Any]]) -> ToolSet:
    """As :func:`prepare`, for tools whose server checks the arguments of each call itself."""
    prepared = prepare(tools)
    return ToolSet(prepared.tools, prepared.listed, prepared.text, server_checks=True)


def prepare(tools: Sequence[Mapping[str, Any]] | ToolSet) -> ToolSet:
    """Compile tools; raises :class:`ConfigurationError` naming the tool that can't be used."""
    if isinstance(tools, ToolSet):
        return tools
    try:
        key = msgspec.json.encode(tools)
        found = _prepared.get(key) or _compile(key.decode())
    except RecursionError as error:
        raise ConfigurationError("tools are nested too deeply to be read") from error
    except (TypeError, UnicodeEncodeError, msgspec.MsgspecError) as error:
        raise ConfigurationError(f"tools are JSON objects: {error}") from error
    _prepared[key] = found
    _prepared.move_to_end(key)
    if len(_prepared) > _KEPT:
        _prepared.popitem(last=False)
    return found


def _compile(text: str) -> ToolSet:
    tools = json.loads(text)
    if not isinstance(tools, list):
        raise ConfigurationError(f"tools are a list of {{name, description, parameters}}, not {type(tools).__name__}")
    out: dict[str, Tool] = {}
    for at, entry in enumerate(tools):
        tool = tool_function(entry) if isinstance(entry, dict) else None
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
        except SchemaError as error:
            raise ConfigurationError(f"the parameters of tool {name!r} are no schema: {error}") from error
    return ToolSet(out, template_tools(tools), text)
