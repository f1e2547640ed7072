"""Selectors: which tests of a data set to take.

    hotel.py                   a file under test_case/, or in its folder by the prefix rule
    hotel.py:test_cancel       one test
    hotels/                    a folder under test_case/, files in the order of their names
    smoke.yaml                 a test list: a YAML list of file:test
    hydrated.jsonl             cases that were hydrated before

Invariant: each selector selects something, and no case is selected twice. A test that its tags skip is left out of a
file or a folder; naming it is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rollout_engine.environments.thinkingbox.dataset.case import Agent, Case
from rollout_engine.environments.thinkingbox.dataset.documents import read_document
from rollout_engine.environments.thinkingbox.dataset.errors import DatasetError, nearest
from rollout_engine.environments.thinkingbox.dataset.fixtures import CONFTEST
from rollout_engine.environments.thinkingbox.dataset.hydrated import read_hydrated

if TYPE_CHECKING:
    from rollout_engine.environments.thinkingbox.dataset.dataset import Dataset


@dataclass(frozen=True)
class _Said:
    """Where a selector is written: a test list's line, or nowhere in a file."""

    file: Path | str = ""
    line: int = 0

    def error(self, message: str) -> DatasetError:
        return DatasetError(message, self.file, self.line)


def select(dataset: Dataset, selectors: Sequence[str], agent: str) -> list[Case]:
    """The cases that ``selectors`` name, in their order; raises DatasetError."""
    chosen: dict[str, tuple[Case, str]] = {}
    for number, selector in enumerate(selectors, 1):
        if not selector.strip():
            raise DatasetError(
                f"selector {number} of {len(selectors)} is empty; name a test, a file, a folder or a list, or give no "
                f"selector at all to have every test of {dataset.tests}"
            )
    for selector in selectors or [str(dataset.tests)]:
        for case, said, by in _select(dataset, selector, agent):
            if case.uid in chosen:
                earlier, other = chosen[case.uid]
                files = "" if earlier.file == case.file else f", in {earlier.file} and {case.file}"
                raise said.error(f"{case.uid} is selected twice, by {other} and by {by}{files}")
            chosen[case.uid] = (case, by)
    return [case for case, _ in chosen.values()]


def _select(dataset: Dataset, selector: str, agent: str) -> Iterator[tuple[Case, _Said, str]]:
    said = _Said()
    path = _find(dataset, selector)
    if path is None:
        name, colon, test = selector.rpartition(":")
        if not colon:
            raise said.error(_not_found(dataset, selector))
        yield _one(dataset, name, test, agent, said), said, repr(selector)
    elif path.suffix == ".jsonl":
        for case in read_hydrated(path):
            if agent and case.agent.name != agent:
                raise DatasetError(f"hydrated for agent {case.agent.name!r}, not {agent!r}", case.file, case.line)
            yield case, said, repr(selector)
    elif path.is_dir():
        files = [file for file in sorted(path.rglob("*")) if _is_test_file(file)]
        if not files:
            raise said.error(f"no test files in {path}")
        for file in files:
            yield from ((case, said, repr(selector)) for case in _whole(dataset, file, dataset.agent(agent)))
    elif path.suffix != ".py" and isinstance((document := read_document(path)).tree, list):
        for index, entry in enumerate(document.tree):
            line = _Said(path, document.line(index))
            if not isinstance(entry, str) or ":" not in entry:
                raise line.error(f"{entry!r} is not file:test")
            name, _, test = entry.partition(":")
            yield _one(dataset, name, test, agent, line), line, f"{path}:{line.line}"
    else:
        yield from ((case, said, repr(selector)) for case in _whole(dataset, path, dataset.agent(agent)))


def _whole(dataset: Dataset, file: Path, agent: Agent) -> Iterator[Case]:
    """The tests of a file that aren't skipped."""
    for name in dataset.entries(file):
        if not dataset.skipped(file, name):
            yield dataset.case(file, name, agent)


def _one(dataset: Dataset, name: str, test: str, agent: str, said: _Said) -> Case:
    file = _find(dataset, name)
    if file is None or not file.is_file():
        raise said.error(_not_found(dataset, name))
    entries = dataset.entries(file)
    if test not in entries:
        raise said.error(f"no test {test!r} in {file}{nearest(test, entries)}")
    if dataset.skipped(file, test):
        raise said.error(f"{name}:{test} is tagged skip; select another, or drop the tag in {file}")
    return dataset.case(file, test, dataset.agent(agent))


def _find(dataset: Dataset, name: str) -> Path | None:
    """A file or folder under test_case/, else a file in the folder of its longest prefix, else a path as it is."""
    try:
        return _at(dataset, name)
    except OSError:  # no name that a file can have
        return None


def _at(dataset: Dataset, name: str) -> Path | None:
    inside = dataset.tests / name
    if inside.exists():
        return inside.resolve()
    parts = name.split("_")
    for count in range(len(parts) - 1, 0, -1):
        file = dataset.tests / "_".join(parts[:count]) / name
        if file.is_file():
            return file.resolve()
    for path in (dataset.folder / name, Path(name).expanduser()):
        if path.exists():
            return path.resolve()
    return None


def _is_test_file(file: Path) -> bool:
    is_yaml = file.suffix == ".yaml" and not file.name.endswith(".meta.yaml") and file.name != CONFTEST
    return file.is_file() and (file.suffix == ".py" or is_yaml)


def _not_found(dataset: Dataset, name: str) -> str:
    names = {file.name for file in dataset.tests.rglob("*") if _is_test_file(file)}
    return f"no test file, folder or list {name!r}{nearest(name, names, 'test files')}"
