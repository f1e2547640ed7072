"""What each stage of the main job has left behind, and how long it took.

Invariant: a stage is done when its product lies in the run's folder, whole, so a rerun goes on after the
last finished stage; and a run's folder belongs to one configuration, and to one job at a time.
"""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from protocol.config import Config
from rollout_engine.errors import ConfigurationError


@contextmanager
def sole_job(config: Config) -> Iterator[None]:
    """Keep other jobs off the run's folder; raise :class:`ConfigurationError` if one is at work on it."""
    config.path.parent.mkdir(parents=True, exist_ok=True)
    # Beside the folder: starting over deletes what is in it.
    with (config.path.parent / f".{config.run}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(
                f"another bin/quickstart is at work in {config.path}: end it first, or choose another run id with "
                "--set run=NAME (and other ports with --set nats.url=URL, --set actor.port=N)"
            ) from None
        yield


def claim_folder(config: Config) -> None:
    """Mark the run's folder as this configuration's; raise :class:`ConfigurationError` if it is another's."""
    check_folder(config)
    config.path.mkdir(parents=True, exist_ok=True)
    _marker(config).write_bytes(msgspec.json.format(msgspec.json.encode(config)))


def check_folder(config: Config) -> None:
    """Raise :class:`ConfigurationError` if the run's folder is another configuration's."""
    if not _marker(config).exists():
        return
    changed = sorted(_differences(json.loads(_marker(config).read_text()), msgspec.to_builtins(config)))
    if changed:
        raise ConfigurationError(
            f"{config.path} was made with another configuration ({', '.join(changed)} differ). "
            "Start over with --fresh, or choose another run id with --set run=NAME"
        )


def _marker(config: Config) -> Path:
    return config.path / "config.json"


def _differences(old: dict, new: dict, prefix: str = "") -> Iterator[str]:
    for key in old.keys() | new.keys():
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from _differences(before, after, f"{prefix}{key}.")
        elif json.dumps(before) != json.dumps(after):
            yield prefix + key


class Stopwatch:
    """Seconds by stage, added up over reruns and kept in ``seconds.json``."""

    def __init__(self, folder: Path):
        self._file = folder / "seconds.json"
        self.seconds: dict[str, float] = json.loads(self._file.read_text()) if self._file.exists() else {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = round(self.seconds.get(name, 0.0) + time.monotonic() - started, 1)
            self._file.write_text(json.dumps(self.seconds, indent=2) + "\n")
