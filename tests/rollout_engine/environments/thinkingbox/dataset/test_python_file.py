from pathlib import Path

import pytest

from rollout_engine.environments.thinkingbox.dataset.errors import DatasetError
from rollout_engine.environments.thinkingbox.dataset.python_file import PythonFile, code_parameters

FILE = Path("tests.py")

TWO = '''import json

"""!
scenario: hotel
"""


def helper(x):
    """Not a test."""
    return json.dumps(x)


@staticmethod
def test_one(
    x,
    judge,
):
    """!
    query: one
    """
    assert helper(x)


LIMIT = 3


def test_two(x, judge, desk):
    """!query: two"""
    assert LIMIT
'''


def test_code_keeps_its_lines_and_loses_the_other_tests():
    file = PythonFile(TWO, FILE)
    assert list(file.functions) == ["test_one", "test_two"]
    lines = TWO.split("\n")
    code = file.code("test_two").split("\n")
    assert code[:12] == lines[:12] and code[21:29] == lines[21:29]
    assert code[12:21] == [""] * 9  # decorator and all
    assert code[-2:] == ["__tb_test_fn = test_two", ""]
    one = file.code("test_one").split("\n")
    assert one[:26] == lines[:26] and one[26:29] == ["", "", ""]


def test_code_runs():
    names = {}
    exec(PythonFile(TWO, FILE).code("test_two"), names)
    assert names["__tb_test_fn"] is names["test_two"] and "test_one" not in names
    assert names["__tb_test_fn"].__code__.co_firstlineno == 27


def test_what_a_test_is_told_by():
    one, two = PythonFile(TWO, FILE).functions.values()
    assert (one.line, one.first, one.last) == (14, 13, 21)
    assert (two.parameters, two.line) == (("x", "judge", "desk"), 27)
    assert two.document.tree == {"query": "two"} and two.document.line("query") == 28
    assert one.document.line("query") == 19
    assert [document.tree for document in one.defaults] == [{"scenario": "hotel"}]


def test_a_later_default_applies_to_later_tests_only():
    text = '"""!\nscenario: a\n"""\ndef t(x, judge):\n    """!\n    query: q\n    """\n"""!\nscenario: b\n"""\n'
    text += 'def u(x, judge):\n    """!\n    query: q\n    """\n'
    functions = PythonFile(text, FILE).functions
    assert [len(functions[name].defaults) for name in "tu"] == [1, 2]


@pytest.mark.parametrize(
    ("text", "line", "fault"),
    [
        ("def f(:\n", 1, "not Python"),
        ("a = 1; b = 2\n", 1, "two statements on one line"),
        ('"""!\n- a\n"""\n', 1, "a mapping belongs here, not a list"),
        ('x = 1\n"""!"""\n', 2, "a mapping belongs here, not nothing"),
        ('"""!\na: 1\na: 2\n"""\n', 3, "the key 'a' is written twice"),
        ("x = " + "-" * 100_000 + "1\n", 0, "not Python: nested too deeply"),
        ('def t(x, judge):\n    f"""!\n    query: q\n    """\n', 2, "neither f nor b before it"),
        ('def t(x, judge):\n    b"""!\n    query: q\n    """\n', 2, "neither f nor b before it"),
        (
            'class T:\n    def t(x, judge):\n        """!query: q"""\n',
            2,
            "only functions at the top of a file are tests",
        ),
        ('if x:\n    def t(x, judge):\n        """!query: q"""\n', 2, "only functions at the top of a file are"),
        ('def f():\n    def t(x, judge):\n        """!query: q"""\n', 2, "only functions at the top of a file are"),
        ('async def t(x, judge):\n    """!\n    query: q\n    """\n', 1, "t is async"),
        (
            'def t(x, judge):\n    y = 1\n    """!\n    query: q\n    """\n',
            3,
            "the YAML of t must be its first statement",
        ),
        ('def t(x, judge):\n    """!\n    query: q\n    """\n' * 2, 5, "a second test t; the first is on line 1"),
        ('def t(judge):\n    """!\n    query: q\n    """\n', 1, "t must take x"),
        ('def t(x):\n    """!\n    query: q\n    """\n', 1, "t must take judge"),
        ('def t(x, judge, *, desk):\n    """!\n    query: q\n    """\n', 1, "desk must be a plain parameter"),
        ('def t(y, /, x, judge):\n    """!\n    query: q\n    """\n', 1, "y must be a plain parameter"),
    ],
)
def test_a_file_that_would_not_run_as_it_reads_is_refused(text, line, fault):
    with pytest.raises(DatasetError) as caught:
        PythonFile(text, FILE)
    assert fault in caught.value.message and caught.value.line == line


def test_any_way_to_take_what_is_passed_will_do():
    text = 'def t(**given):\n    """!query: q"""\n\ndef u(x, judge, *, desk=None):\n    """!query: q"""\n'
    assert {name: test.parameters for name, test in PythonFile(text, FILE).functions.items()} == {
        "t": (),
        "u": ("x", "judge"),
    }


def test_code_of_a_yaml_test_binds_its_function():
    assert code_parameters("def check(x, judge, desk): ...\n__tb_test_fn = check\n", FILE) == (
        "check", ("x", "judge", "desk"), 1,
    )  # fmt: skip
    assert code_parameters("\ndef __tb_test_fn(x, judge): ...\n", FILE)[0] == "__tb_test_fn"
    for code, fault in [
        ("def check(x, judge): ...", "binds no function to __tb_test_fn"),
        ("__tb_test_fn = 3", "binds no function"),
        ("__tb_test_fn = gone", "binds no function"),
        ("def", "test_code is not Python"),
    ]:
        with pytest.raises(DatasetError, match=fault):
            code_parameters(code, FILE, 7)
