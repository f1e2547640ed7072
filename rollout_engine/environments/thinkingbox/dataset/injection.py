"""In which order a test's fixtures are made.

Invariant: a fixture comes after those that it takes. A parameter without a default is injected by name, from the
other fixtures or from what the runner brings (``x``, ``judge``); one with a default, or set in the file, never is.
Standard library only, so that the process that runs tests can load this file alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

RUNTIME = ("x", "judge")
"""What the runner brings."""


def injected(factory: Callable[..., Any], set_in_file: Collection[str]) -> list[str]:
    """Names of the parameters of ``factory`` that are injected."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # a built-in that doesn't tell
        return []
    return [
        parameter.name
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is parameter.empty
        and parameter.name not in set_in_file
        and parameter.name != "self"
    ]


def injection_order(
    wanted: Collection[str], needs: Callable[[str], Collection[str]], known: Collection[str]
) -> list[str]:
    """``wanted`` and all that they need, what is needed first.

    ``needs`` tells the injected names of a known fixture. Raises ValueError on a cycle and on a name that is neither
    a fixture nor the runner's.
    """
    order: list[str] = []

    def visit(name: str, chain: tuple[str, ...]) -> None:
        if name in order:
            return
        if name in chain:
            raise ValueError(f"fixtures need each other: {' -> '.join((*chain, name))}")
        if name not in known:
            by = f"fixture {chain[-1]!r}" if chain else "the test"
            raise ValueError(f"{by} takes {name!r}, which is no fixture and not brought by the runner")
        for need in needs(name):
            if need not in RUNTIME:
                visit(need, (*chain, name))
        order.append(name)

    for name in wanted:
        visit(name, ())
    return order


def make_arguments(names: Collection[str], made: Mapping[str, Any], runtime: Mapping[str, Any]) -> dict[str, Any]:
    """The injected arguments of one fixture; what the runner brings comes first."""
    return {name: runtime[name] if name in runtime else made[name] for name in names}
