"""Compiles a model folder's own chat template.

Invariant: a template sees the environment that Hugging Face gives it, so it writes the same text here
as in any server: an immutable sandbox, trimmed blocks, loop controls, ``tojson`` without HTML escaping,
``raise_exception``, ``strftime_now`` and the ``{% generation %}`` block.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from jinja2 import Template, nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class _Generation(Extension):
    """``{% generation %} … {% endgeneration %}`` marks assistant text for trainers; the text is all we need."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def _tojson(value: Any, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str):
    raise TemplateError(message)


def compile_template(source: str) -> Template:
    """The compiled template; raises :class:`jinja2.TemplateError` on a syntax error."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment.from_string(source)
