"""Tool schemas as the proxy's clients expect them: references inlined, titles dropped.

Invariant: the result has no ``$ref`` and no ``$defs``, shares nothing with the input, and accepts the same arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollout_engine.sessions.results import ToolSpec


class SchemaError(ValueError):
    """A schema that can't be written without references."""


class Described:
    """Tools as the protocol lists them. A tool that is the same object for many sessions is worked on once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[ToolSpec, dict[str, Any]]] = {}

    def __call__(self, tool: ToolSpec) -> dict[str, Any]:
        """``{description, inputSchema, server}``, not to be changed; the server is our addition. Raises SchemaError."""
        known = self._known.get((tool.server, tool.name))
        if known is None or known[0] is not tool:
            described = {"description": tool.description, "inputSchema": inlined(tool.input_schema)}
            known = self._known[tool.server, tool.name] = tool, described | {"server": tool.server}
        return known[1]


def inlined(schema: Mapping[str, Any]) -> dict[str, Any]:
    """``schema`` without references; without the titles of the schema itself and of its properties.

    Raises SchemaError for a reference that leads to itself or to nothing.
    """
    plain = _inline(schema, schema, ())
    plain.pop("$defs", None)
    for part in (plain, *(plain.get("properties") or {}).values()):
        if isinstance(part, dict):
            part.pop("title", None)
    return plain


def _inline(node: Any, root: Mapping[str, Any], inside: tuple[str, ...]) -> Any:
    if isinstance(node, Mapping):
        reference = node.get("$ref")
        if not isinstance(reference, str):
            return {key: _inline(value, root, inside) for key, value in node.items()}
        if reference in inside:
            raise SchemaError(f"Circular reference detected: {reference}")
        return _inline(_target(root, reference), root, (*inside, reference))
    if isinstance(node, list):
        return [_inline(item, root, inside) for item in node]
    return node


def _target(root: Mapping[str, Any], reference: str) -> Any:
    """What a JSON pointer within the document (RFC 6901) points to."""
    node: Any = root if reference.startswith("#/") else None
    for part in reference[2:].split("/"):
        node = node.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(node, Mapping) else None
    if node is None:
        raise SchemaError(f"Missing definition for reference: {reference}")
    return node
