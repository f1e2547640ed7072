"""Where a run's ThinkingBox data lies, and the tasks that it selects there.

Invariant: the same configuration and environment give the same tasks in the same order to every verb, and a file that
its publisher keeps for evaluation gives no training task.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from protocol.config import Config, ThinkingBox
from rollout_engine.environments.task import Split
from rollout_engine.environments.thinkingbox.dataset import Case, DatasetError, load_dataset
from rollout_engine.environments.thinkingbox.releases import evaluation_only
from rollout_engine.environments.thinkingbox.task import PREFIX, ThinkingBoxTask
from rollout_engine.errors import ConfigurationError
from rollout_engine.sessions.errors import ServersFileError
from rollout_engine.sessions.servers import ServerSpec, impossible_variable, load_servers

FRAMEWORK, CHECKOUT, PYTHON = "ENDSTATE_THINKINGBOX", "ENDSTATE_THINKINGBOX_DATA", "ENDSTATE_THINKINGBOX_PYTHON"
"""Environment variables: checkouts of ``thinkingbox`` and of ``thinkingbox-data``, and the Python that has their
servers installed."""


@dataclass(frozen=True)
class Places:
    """Resolved paths. ``env`` is added to every server's environment."""

    data: Path
    servers: Path
    python: str
    env: Mapping[str, str]


def places(settings: ThinkingBox) -> Places:
    """Raises :class:`ConfigurationError` naming the key of a value that can't be used, and the key and the variable
    where neither says where to look."""
    checkout = os.environ.get(CHECKOUT, "")

    def place(key: str, below: str) -> Path:
        named = getattr(settings, key)
        if not named and not checkout:
            raise ConfigurationError(
                f"tasks.thinkingbox.{key} is empty and ${CHECKOUT} is not set: set one of them, the variable to a "
                "checkout of thinkingbox-data"
            )
        return Path(named or Path(checkout) / below).expanduser().absolute()

    for folder in settings.modules:
        if not Path(folder).is_dir():
            raise ConfigurationError(f"tasks.thinkingbox.modules: no folder {folder!r}")
    if (refused := impossible_variable(settings.env)) is not None:
        raise ConfigurationError(f"tasks.thinkingbox.env: {refused!r} can't be a variable of the environment")
    # Servers of that checkout look for their data by this name.
    env = {"THINKINGBOX_DATA": os.environ.get("THINKINGBOX_DATA") or str(Path(checkout).absolute())} if checkout else {}
    return Places(
        data=place("data", "dataset"),
        servers=place("servers", "servers/servers.yaml"),
        python=settings.python or os.environ.get(PYTHON) or sys.executable,
        env={**env, **settings.env},
    )


def server_specs(settings: ThinkingBox) -> dict[str, ServerSpec]:
    """The servers by name; raises :class:`ConfigurationError`."""
    where = places(settings)
    try:
        specs = load_servers(where.servers, where.python, internal=_internal_servers())
    except ServersFileError as error:
        raise ConfigurationError(str(error)) from error
    return {name: replace(spec, env={**where.env, **spec.env}) for name, spec in specs.items()}


def _internal_servers() -> Path | None:
    """The framework's own servers, which a servers file may ask for."""
    framework = os.environ.get(FRAMEWORK)
    return Path(framework) / "thinkingbox" / "tools" if framework else None


def thinkingbox_tasks(config: Config, split: Split) -> list[ThinkingBoxTask]:
    """The tasks that the configuration selects for ``split``.

    Raises :class:`ConfigurationError` for a data set that can't be used, and for a training task that its publisher
    keeps for evaluation.
    """
    settings = config.tasks.thinkingbox
    chosen = settings.train if split == "train" else settings.heldout
    if not chosen:
        return []
    where = places(settings)
    cases = _cases(where.data, where.servers, settings, chosen)
    if not cases and settings.tags:
        raise ConfigurationError(
            f"tasks.thinkingbox.tags: no task under tasks.thinkingbox.{split} has all of {', '.join(settings.tags)}"
        )
    if split == "train":
        _refuse_evaluation_only(where.data, cases)
    return [ThinkingBoxTask(case, split) for case in cases]


def find_thinkingbox_tasks(config: Config, ids: Sequence[str]) -> list[ThinkingBoxTask]:
    """The tasks of those ids, for evaluation; raises :class:`ConfigurationError` when there is no such task."""
    settings, where = config.tasks.thinkingbox, places(config.tasks.thinkingbox)
    names = tuple(id.removeprefix(PREFIX) for id in dict.fromkeys(ids))
    return [ThinkingBoxTask(case, "heldout") for case in _cases(where.data, where.servers, settings, names)]


def _refuse_evaluation_only(data: Path, cases: tuple[Case, ...]) -> None:
    kept = evaluation_only(data)
    refused = [case for case in cases if Path(case.file).name in kept or case.uid.partition(":")[0] in kept]
    if refused:
        first = refused[0]
        raise ConfigurationError(
            f"tasks.thinkingbox.train selects {first.uid} ({len(refused)} such tasks), which may be evaluated on but "
            f"not trained on: {kept[first.uid.partition(':')[0]]} says so. Select it under tasks.thinkingbox.heldout"
        )


def _cases(data: Path, servers: Path, settings: ThinkingBox, chosen: tuple[str, ...]) -> tuple[Case, ...]:
    return _hydrated(data, _absolute(data, chosen), settings.agent, settings.tags, tuple(server_specs(settings)))


def _absolute(data: Path, chosen: tuple[str, ...]) -> tuple[str, ...]:
    """Selectors that name a file beside the data set, made to find it from anywhere."""
    return tuple(str(data / name) if (data / name).exists() else name for name in chosen)


@cache
def _hydrated(
    data: Path, chosen: tuple[str, ...], agent: str, tags: tuple[str, ...], servers: tuple[str, ...]
) -> tuple[Case, ...]:
    try:
        return tuple(load_dataset(data, servers).hydrate(chosen, agent, tags))
    except DatasetError as error:
        raise ConfigurationError(str(error)) from error
