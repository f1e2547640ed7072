"""Which fixtures the tests of a file may take.

Invariant: conftest.yaml files count from the root of the tests down to the file's folder, then the scenario's
fixtures; a later entry replaces an earlier one of its name as a whole.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from rollout_engine.environments.thinkingbox.dataset.case import Fixture
from rollout_engine.environments.thinkingbox.dataset.documents import Document, read_document
from rollout_engine.environments.thinkingbox.dataset.errors import DatasetError, nearest
from rollout_engine.environments.thinkingbox.dataset.injection import RUNTIME
from rollout_engine.environments.thinkingbox.dataset.schema import ConftestFile

CONFTEST = "conftest.yaml"


def read_fixtures(document: Document, fixtures: dict[str, dict[str, Any]]) -> dict[str, Fixture]:
    """The fixtures of a file that writes them under ``fixtures``; raises DatasetError."""
    read = {}
    for name, entry in fixtures.items():
        arguments = dict(entry)
        kind = arguments.pop("type", None)
        if not isinstance(kind, str) or not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", kind):
            message = f"fixture {name!r}: type must be the dotted path of a class or function, not {kind!r}"
            raise document.error(message, "fixtures", name)
        if name in RUNTIME or not name.isidentifier():
            raise document.error(f"fixture {name!r}: no test can take a fixture of this name", "fixtures", name)
        read[name] = Fixture(kind, arguments)
    return read


def conftest_fixtures(folder: Path, root: Path) -> dict[str, Fixture]:
    """The fixtures of the conftest files from ``root`` down to ``folder``; none outside ``root``."""
    if not folder.is_relative_to(root):
        return {}
    merged: dict[str, Fixture] = {}
    steps = folder.relative_to(root).parts
    for depth in range(len(steps) + 1):
        file = root.joinpath(*steps[:depth], CONFTEST)
        if file.is_file():
            document = read_document(file)
            if document.tree is not None:
                merged.update(read_fixtures(document, document.typed(ConftestFile).fixtures))
    return merged


def check_parameters(name: str, parameters: tuple[str, ...], fixtures: dict[str, Fixture], file: Path, line: int):
    """Raise DatasetError for a parameter of a test that nobody can pass."""
    for parameter in parameters:
        if parameter not in RUNTIME and parameter not in fixtures:
            hint = nearest(parameter, [*RUNTIME, *fixtures])
            raise DatasetError(f"{name} takes {parameter!r}, which is no fixture{hint}", file, line)
