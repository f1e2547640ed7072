"""The tests of one file, Python or YAML, each with the fields that apply to it.

Invariant: a field that a test writes replaces its file's default as a whole, except two tag lists, which are joined.
A field is remembered with the document that wrote it, so that a fault in it can be told by its line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import UNSET

from rollout_engine.environments.thinkingbox.dataset.documents import Document, Keys, read_document, read_text
from rollout_engine.environments.thinkingbox.dataset.errors import DatasetError
from rollout_engine.environments.thinkingbox.dataset.python_file import PythonFile, code_parameters, parse_python
from rollout_engine.environments.thinkingbox.dataset.schema import TestFields, YamlTest, YamlTestFile
from rollout_engine.environments.thinkingbox.dataset.tags import Tags, Taxonomy, merge_tags, read_tags

FIELDS = TestFields.__struct_fields__


@dataclass(frozen=True)
class Written:
    """A field's value and where it is written."""

    value: Any
    document: Document
    at: Keys


@dataclass(frozen=True)
class TestEntry:
    """One test of a file, its YAML not yet looked at."""

    __test__ = False  # it is no test of pytest's

    name: str
    line: int
    parameters: Callable[[], tuple[str, tuple[str, ...]]]
    """(name, parameters) of its function."""
    code: Callable[[], str]
    layers: Callable[[], list[tuple[TestFields, Document, Keys]]]
    """What is written of it, a later layer over an earlier one."""
    metadata: dict[str, Any]

    def fields(self) -> dict[str, Written]:
        """The fields that are written of it; raises DatasetError."""
        return {
            name: Written(value, document, (*at, name))
            for layer, document, at in self.layers()
            for name in FIELDS
            if (value := getattr(layer, name)) is not UNSET
        }

    def tags(self, taxonomy: Taxonomy) -> Tags:
        """Its own and its file's; raises DatasetError."""
        tags, joined = Tags(), False
        for layer, document, at in self.layers():
            if layer.tags is not UNSET:
                read = read_tags(document, (*at, "tags"), taxonomy)
                is_list = isinstance(layer.tags, list)
                tags = _joined(tags, read) if joined and is_list else read
                joined = is_list
        return tags


def _joined(first: Tags, second: Tags) -> Tags:
    """The tags of two lists one after the other."""
    merged = merge_tags(first, second)
    return Tags(merged.labels, (*first.category, *second.category), merged.domain, merged.eval_type, merged.skip)


def load_tests(file: Path) -> dict[str, TestEntry]:
    """The tests of a file by name, in their order; raises DatasetError."""
    if file.suffix == ".py":
        return _python_tests(parse_python(read_text(file), file))
    return _yaml_tests(read_document(file))


def _python_tests(source: PythonFile) -> dict[str, TestEntry]:
    def entry(name: str) -> TestEntry:
        test = source.functions[name]

        def layers() -> list[tuple[TestFields, Document, Keys]]:
            test.document.mapping()
            return [(document.typed(TestFields), document, ()) for document in (*test.defaults, test.document)]

        return TestEntry(
            name, test.line, lambda: (name, test.parameters), lambda: source.code(name), layers, {}
        )  # fmt: skip

    return {name: entry(name) for name in source.functions}


def _yaml_tests(document: Document) -> dict[str, TestEntry]:
    document.mapping()
    tests: dict[str, TestEntry] = {}
    for index, test in enumerate(document.typed(YamlTestFile).test_cases):
        if test.uid in tests:
            raise document.error(f"a second test {test.uid!r}", "test_cases", index, "uid")
        tests[test.uid] = _yaml_entry(document, index, test)
    return tests


def _yaml_entry(document: Document, index: int, test: YamlTest) -> TestEntry:
    at = ("test_cases", index)

    def parameters() -> tuple[str, tuple[str, ...]]:
        try:
            return code_parameters(test.test_code, document.file)[:2]
        except DatasetError as error:
            raise document.error(f"{test.uid}: {error.message}", *at, "test_code") from error

    line = document.line(*at)
    return TestEntry(
        test.uid, line, parameters, lambda: test.test_code, lambda: [(test, document, at)], test.metadata
    )  # fmt: skip
