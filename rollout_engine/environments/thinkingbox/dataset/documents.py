"""YAML documents that remember where they stand.

Invariants: a document's tree is what JSON can say (text keys; no dates, sets or bytes; no infinite number), and no
key was written twice. The tree is read with libyaml and typed by msgspec without keeping track of lines; only when
something is wrong is the text read again to find the line.
"""

from __future__ import annotations

import math
import re
import types
import typing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from rollout_engine.environments.thinkingbox.dataset.errors import DatasetError, nearest

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MERGE = "tag:yaml.org,2002:merge"

Struct = TypeVar("Struct", bound=msgspec.Struct)
Keys = tuple[str | int, ...]
"""Where a value stands in a tree: keys and indices from the root."""


class _StrictLoader(_Loader):
    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict[str, Any]:
        written = list(node.value) if isinstance(node, yaml.MappingNode) else []  # merge keys are expanded in place
        mapping = super().construct_mapping(node, deep)
        if len(mapping) != len(written):
            self._refuse_repeated(written)
        for key in mapping:
            if type(key) is not str:
                raise _fault(f"the key {key!r} is not text; put it in quotes", node)
        return mapping

    def _refuse_repeated(self, written: list[tuple[yaml.Node, yaml.Node]]) -> None:
        seen = set()
        for key_node, _ in written:
            if key_node.tag != _MERGE:
                key = self.construct_object(key_node, deep=True)
                if key in seen:
                    raise _fault(f"the key {key!r} is written twice", key_node)
                seen.add(key)


def _fault(problem: str, node: yaml.Node) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def _refuse(what: str):
    def construct(loader: _StrictLoader, node: yaml.Node) -> Any:
        raise _fault(f"{what} can't be written as JSON; put it in quotes", node)

    return construct


def _finite(loader: _StrictLoader, node: yaml.Node) -> float:
    number = loader.construct_yaml_float(node)
    if not math.isfinite(number):
        raise _fault(f"{node.value} is no number that JSON can write", node)
    return number


_StrictLoader.add_constructor("tag:yaml.org,2002:float", _finite)
for _tag, _what in {"timestamp": "a date", "binary": "binary data", "set": "a set"}.items():
    _StrictLoader.add_constructor(f"tag:yaml.org,2002:{_tag}", _refuse(_what))
for _tag in ("omap", "pairs"):
    _StrictLoader.add_constructor(f"tag:yaml.org,2002:{_tag}", _refuse("a list of pairs"))


@dataclass(frozen=True)
class Document:
    """One YAML text. ``first_line`` is the line of ``file`` at which it begins, from 1."""

    text: str
    file: Path
    first_line: int = 1

    @cached_property
    def tree(self) -> Any:
        """Plain data, to be read only; raises :class:`DatasetError`."""
        try:
            tree = yaml.load(self.text, _StrictLoader)
            if "&" in self.text and "*" in self.text:
                msgspec.json.encode(tree)  # an anchor that holds its own alias has no end
            return tree
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = self.first_line + mark.line if mark else self.first_line
            raise DatasetError(error.problem or "not YAML", self.file, line) from error
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            # A character that YAML doesn't take, too deep a nesting, an integer of too many digits.
            raise DatasetError(f"not YAML: {error}", self.file, self.first_line) from error

    @cached_property
    def _root(self) -> yaml.Node:
        return yaml.compose(self.text, _Loader)

    def mapping(self) -> dict[str, Any]:
        """The tree, which must be a mapping."""
        if not isinstance(self.tree, dict):
            raise DatasetError(f"a mapping belongs here, not {_kind(self.tree)}", self.file, self.first_line)
        return self.tree

    def typed(self, kind: type[Struct], at: Keys = (), without: frozenset[str] = frozenset()) -> Struct:
        """The tree at ``at``, less the keys ``without``, as ``kind``; raises :class:`DatasetError`."""
        tree = self.tree
        for part in at:
            tree = tree[part]
        if without and isinstance(tree, dict):
            tree = {key: value for key, value in tree.items() if key not in without}
        try:
            return msgspec.convert(tree, kind)
        except msgspec.ValidationError as error:
            message, path = explain(str(error), kind)
            raise self.error(message, *at, *path) from error

    def error(self, message: str, *path: str | int) -> DatasetError:
        """An error that names the line at which the value of ``path`` (keys and indices) is written."""
        return DatasetError(message, self.file, self.line(*path))

    def line(self, *path: str | int) -> int:
        """Where ``path`` is written; as much of it as there is."""
        node, mark = self._root, None
        for part in path:
            if isinstance(node, yaml.MappingNode):
                found = [pair for pair in node.value if pair[0].value == part]
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
                found = [(item, item) for item in node.value[part : part + 1]]
            else:
                found = []
            if not found:
                break
            mark, node = found[0][0].start_mark, found[0][1]
        return self.first_line + (mark.line if mark else 0)


def read_document(file: Path) -> Document:
    """The one document of a file; raises :class:`DatasetError`."""
    return Document(read_text(file), file)


def read_text(file: Path) -> str:
    """A file's text, without a byte order mark; raises :class:`DatasetError`."""
    try:
        return file.read_text("utf-8-sig")
    except OSError as error:
        raise DatasetError(f"cannot be read: {error.strerror}", file) from error
    except UnicodeDecodeError as error:
        raise DatasetError(f"not UTF-8 text: {error}", file) from error


def explain(message: str, kind: Any) -> tuple[str, Keys]:
    """msgspec's message in words that name the nearest known field, and the path that it is about."""
    told, _, where = message.partition(" - at ")
    path: Keys = tuple(int(index) if index else name for name, index in re.findall(r"\.(\w+)|\[(\d+)\]", where))
    unknown = re.search(r"unknown field `(.+?)`", told)
    if not unknown:
        return told + (f" ({where.strip('`').removeprefix('$.')})" if path else ""), path
    name = unknown.group(1)
    for part in path:
        kind = _inside(kind, part)
    known = [field.encode_name for field in msgspec.structs.fields(kind)]
    return f"unknown key {name!r}{nearest(name, known)}", (*path, name)


def _inside(kind: Any, part: str | int) -> Any:
    """The type of one field or item of ``kind``."""
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        kind = next(option for option in typing.get_args(kind) if option not in (type(None), msgspec.UnsetType))
    if isinstance(part, int):
        return typing.get_args(kind)[0]
    return next(field.type for field in msgspec.structs.fields(kind) if field.encode_name == part)


def _kind(value: Any) -> str:
    return {list: "a list", str: "text", type(None): "nothing"}.get(type(value), type(value).__name__)
