"""How a test's own settings are laid over its scenario's.

Invariant: dicts merge key by key, lists are joined, anything else is replaced by the second. Neither argument is
changed; the result may share parts with both, so it is read and never written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merge(first: Any, second: Any) -> Any:
    """``second`` laid over ``first``."""
    if isinstance(first, dict) and isinstance(second, dict):
        merged = dict(first)
        for key, value in second.items():
            merged[key] = merge(first[key], value) if key in first else value
        return merged
    if isinstance(first, list) and isinstance(second, list):
        return first + second
    return second


def merge_world(world_state: Mapping[str, Any], init: Mapping[str, Any]) -> dict[str, Any]:
    """{server: config}: the scenario's, in its order, under the test's. A server that is set to nothing (null, {})
    in the scenario takes the test's config as it is."""
    world = dict(world_state)
    for server, config in init.items():
        world[server] = merge(world[server], config) if world.get(server) else config
    return world
