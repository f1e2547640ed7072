'''Test files in Python: read with ``ast``, never imported.

    """!
    scenario: hotel            # YAML at the top of the module: defaults of the tests below it
    """

    def helper(x): ...         # no YAML: not a test

    def test_cancel(x, judge):
        """!
        query: Cancel my booking, please.
        """
        assert x.effects["bookings"]["bookings"] == []

Invariant: the code of a test is its file with every other test blanked, so that lines keep their numbers, and a last
line that binds the test to a name that runners know.
'''

from __future__ import annotations

import ast
import textwrap
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from rollout_engine.environments.thinkingbox.dataset.documents import Document
from rollout_engine.environments.thinkingbox.dataset.errors import DatasetError

TEST_NAME = "__tb_test_fn"
"""What the code of a test binds its function to."""

NOT_PARSED = (SyntaxError, ValueError, RecursionError, MemoryError)
"""What Python's parser raises; MemoryError is what it says of an expression that is nested too deeply."""


@dataclass(frozen=True)
class TestFunction:
    """A test, and the YAML that applies to it. Lines count from 1; ``first`` is that of a decorator, if any."""

    __test__ = False  # it is no test of pytest's

    name: str
    line: int
    first: int
    last: int
    parameters: tuple[str, ...]
    document: Document
    defaults: tuple[Document, ...]
    """The module's, in their order: a later one overrides an earlier one."""


class PythonFile:
    """The tests of one file; raises DatasetError."""

    def __init__(self, text: str, file: Path) -> None:
        self.file = file
        self.functions: dict[str, TestFunction] = {}
        self._text = text
        try:
            tree = ast.parse(text)
        except NOT_PARSED as error:
            raise DatasetError(f"not Python: {_why(error)}", file, getattr(error, "lineno", 0) or 0) from error
        defaults: tuple[Document, ...] = ()
        last = 0
        for node in tree.body:
            if node.lineno <= last:
                raise DatasetError("two statements on one line; give each its own", file, node.lineno)
            last = node.end_lineno
            if (document := _document(node, file)) is not None:
                document.mapping()
                defaults += (document,)
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._add(node, defaults)
            else:
                _refuse_inside(node, file)

    def code(self, name: str) -> str:
        """The source to run for one test."""
        test = self.functions[name]
        lines = self._blanked.copy()
        lines[test.first - 1 : test.last] = self._lines[test.first - 1 : test.last]
        return "\n".join([*lines, f"{TEST_NAME} = {name}", ""])

    @cached_property
    def _lines(self) -> list[str]:
        return self._text.split("\n")

    @cached_property
    def _blanked(self) -> list[str]:
        """The lines without any test."""
        lines = self._lines.copy()
        for test in self.functions.values():
            lines[test.first - 1 : test.last] = [""] * (test.last - test.first + 1)
        return lines

    def _add(self, node: ast.FunctionDef | ast.AsyncFunctionDef, defaults: tuple[Document, ...]) -> None:
        document = _document(node.body[0], self.file)
        if document is None:
            for late in node.body[1:]:
                if _document(late, self.file) is not None:
                    message = f"the YAML of {node.name} must be its first statement, or it is no test"
                    raise DatasetError(message, self.file, late.lineno)
            _refuse_inside(node, self.file)
            return
        if isinstance(node, ast.AsyncFunctionDef):
            raise DatasetError(f"{node.name} is async: tests are plain functions", self.file, node.lineno)
        if node.name in self.functions:
            earlier = self.functions[node.name].line
            raise DatasetError(f"a second test {node.name}; the first is on line {earlier}", self.file, node.lineno)
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        parameters = _parameters(node, self.file)
        self.functions[node.name] = TestFunction(
            node.name, node.lineno, first, node.end_lineno, parameters, document, defaults
        )


@lru_cache(maxsize=64)
def parse_python(text: str, file: Path) -> PythonFile:
    """A file by its content: one that hasn't changed is parsed once."""
    return PythonFile(text, file)


def code_parameters(code: str, file: Path, line: int = 0) -> tuple[str, tuple[str, ...], int]:
    """(name, parameters, line in the code) of the test that ``code`` binds to the name that runners know.

    Raises DatasetError where it binds none, or where the code isn't Python.
    """
    try:
        tree = ast.parse(code)
    except NOT_PARSED as error:
        raise DatasetError(f"test_code is not Python: {_why(error)}", file, line) from error
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    bound = TEST_NAME if TEST_NAME in functions else None
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            if any(isinstance(target, ast.Name) and target.id == TEST_NAME for target in node.targets):
                bound = node.value.id
    if bound not in functions:
        raise DatasetError(f"test_code binds no function to {TEST_NAME}", file, line)
    return bound, _parameters(functions[bound], file), functions[bound].lineno


def _why(error: BaseException) -> str:
    return str(error) or "nested too deeply"


def _document(node: ast.stmt, file: Path) -> Document | None:
    """The YAML of a statement that is a text beginning with ``!``."""
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)):
        return None
    text = node.value.value
    return Document(textwrap.dedent(text[1:]), file, node.lineno) if text.startswith("!") else None


def _refuse_inside(node: ast.stmt, file: Path) -> None:
    """Refuse the YAML of a test that no runner would find."""
    for inner in ast.walk(node):
        if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)) and inner is not node:
            if _document(inner.body[0], file) is not None:
                message = f"{inner.name} has a test's YAML, but only functions at the top of a file are tests"
                raise DatasetError(message, file, inner.lineno)
        elif isinstance(inner, ast.Expr) and _begins_like_yaml(inner.value):
            raise DatasetError(
                "the YAML of a test must be a plain text, with neither f nor b before it", file, inner.lineno
            )


def _begins_like_yaml(node: ast.expr) -> bool:
    """Whether it is an f-string or bytes that begin with ``!``."""
    first = node.values[0] if isinstance(node, ast.JoinedStr) and node.values else node
    if not isinstance(first, ast.Constant) or (first is node and not isinstance(first.value, bytes)):
        return False
    return first.value[:1] in ("!", b"!")


def _parameters(node: ast.FunctionDef, file: Path) -> tuple[str, ...]:
    """Names that a runner passes: ``x``, ``judge`` and fixtures."""
    names = [argument.arg for argument in node.args.args]
    for name in ("x", "judge"):
        if name not in names and node.args.kwarg is None:
            raise DatasetError(f"{node.name} must take {name}: a test is called with x and judge", file, node.lineno)
    required = [a.arg for a, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if not default]
    for name in [argument.arg for argument in node.args.posonlyargs] + required:
        raise DatasetError(f"{node.name}: {name} must be a plain parameter to be passed", file, node.lineno)
    return tuple(names)
