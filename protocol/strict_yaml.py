"""YAML as a person who writes a configuration means it.

Invariant: nothing that was written is dropped or taken for something else. A key that a mapping repeats
is refused (plain YAML keeps the last, so one section would silently replace another), and ``1e-6`` is a
number (YAML 1.1 wants ``1.0e-6``) unless it is quoted.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

_SCIENTIFIC = re.compile(r"^[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$")


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge" or not isinstance(key_node, yaml.ScalarNode):
                continue
            key = self.construct_object(key_node)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    "while reading a mapping", node.start_mark, f"found the key {key!r} twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    pass


for _side in (_Loader, _Dumper):
    _side.add_implicit_resolver("tag:yaml.org,2002:float", _SCIENTIFIC, list("-+.0123456789"))


def read(text: str) -> Any:
    """The one document of ``text``; raises ``yaml.YAMLError`` saying where it is malformed."""
    try:
        return yaml.load(text, _Loader)
    except RecursionError as error:
        raise yaml.YAMLError("it is nested too deeply") from error
    except ValueError as error:  # an impossible date, an integer of too many digits
        raise yaml.YAMLError(str(error)) from error


def write(tree: Any) -> str:
    """``tree`` as YAML that :func:`read` gives back, keys in their order."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False)
