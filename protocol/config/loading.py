"""A configuration from its file.

Unknown keys are refused with the nearest known name.
"""

from __future__ import annotations

import difflib
import math
import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import yaml

from protocol import strict_yaml
from protocol.config.checks import check
from protocol.config.run import Config
from protocol.config.section import ConfigError

STALE_TRUNCATION = 2.0
"""``learner.loss.truncated_is`` of a run with stale tokens that names none: what asynchronous trainers use."""


def load(path: str | Path, overrides: list[str] | tuple[str, ...] = ()) -> Config:
    """Read a YAML file and apply ``key.path=value`` overrides (values are YAML).

    Raises :class:`ConfigError` naming the file, the key, and the nearest known name of an unknown key.
    """
    try:
        tree = strict_yaml.read(Path(path).read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read configuration {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: a run configuration is a mapping, not {type(tree).__name__}")
    for override in overrides:
        apply_override(tree, override)
    return resolve(tree, str(path))


def resolve(tree: dict[str, Any], source: str = "configuration") -> Config:
    """A typed configuration from plain data; raises :class:`ConfigError`."""
    try:
        config = msgspec.convert(tree, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {_explain(str(error))}") from error
    if endless := _not_finite(msgspec.to_builtins(config)):
        raise ConfigError(f"{source}: {endless} must be a finite number")
    check(config, source)
    return _weigh_stale_tokens(config)


def _weigh_stale_tokens(config: Config) -> Config:
    """Tokens of older versions are learnt from by truncated importance weights, never as if they were current."""
    learner = config.learner
    if not config.rollout.max_staleness or learner.loss.truncated_is is not None:
        return config
    loss = msgspec.structs.replace(learner.loss, truncated_is=STALE_TRUNCATION)
    return msgspec.structs.replace(config, learner=msgspec.structs.replace(learner, loss=loss))


def dump(config: Config) -> str:
    """The resolved configuration as YAML, with its fingerprint in a comment."""
    tree = msgspec.to_builtins(config)
    return f"# fingerprint {config.fingerprint()}\n" + strict_yaml.write(tree)


def apply_override(tree: dict[str, Any], override: str) -> None:
    """Set ``KEY.PATH=VALUE`` in a tree that was read; raises :class:`ConfigError` for what is no override."""
    key, sign, value = override.partition("=")
    if not sign or not all(key.split(".")):
        raise ConfigError(f"override {override!r} is not KEY=VALUE, for example learner.optimizer.learning_rate=1e-6")
    *parents, leaf = key.split(".")
    node = tree
    for name in parents:
        node = node.setdefault(name, {})
        if not isinstance(node, dict):
            raise ConfigError(f"override {override!r}: {name} is a value, not a section")
    try:
        node[leaf] = strict_yaml.read(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"override {override!r}: the value is not YAML: {error}") from error


def _not_finite(tree: Any, key: str = "") -> str | None:
    """The key of an infinite number or NaN: no bound, and no number that JSON can write."""
    if isinstance(tree, dict):
        found = (_not_finite(value, f"{key}.{name}".lstrip(".")) for name, value in tree.items())
        return next(filter(None, found), None)
    return key if isinstance(tree, float) and not math.isfinite(tree) else None


def _explain(message: str) -> str:
    unknown = re.search(r"unknown field `(.+?)`(?: - at `\$\.?(.*?)`)?$", message)
    if not unknown:
        return message.replace("`$.", "`")
    name, where = unknown.group(1), unknown.group(2) or ""
    section: Any = Config
    for part in [p for p in where.split(".") if p]:
        section = {f.name: f.type for f in msgspec.structs.fields(section)}[part]
        # A section that may be left out is a union with None.
        section = next((kind for kind in get_args(section) if kind is not type(None)), section)
    known = [f.name for f in msgspec.structs.fields(section)]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else f"; known here: {', '.join(known)}"
    return f"unknown key {'.'.join(filter(None, [where, name]))!r}{hint}"
