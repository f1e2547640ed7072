"""Which commands are Python's, and what of them is kept."""

import os
import sys

import pytest

from rollout_engine.sessions.commands import PythonCommand, parse

ENV = {"PATH": os.path.dirname(sys.executable)}


@pytest.mark.parametrize(
    "rest, options, module, script, args",
    [
        (["-m", "a.b", "--x", "1"], [], "a.b", "", ["--x", "1"]),
        (["server.py", "-m", "x"], [], "", "server.py", ["-m", "x"]),
        (["-u", "-bb", "-X", "dev", "-Wignore", "-W", "error", "-m", "a"],
         ["-u", "-bb", "-X", "dev", "-Wignore", "-W", "error"], "a", "", []),
    ],
)  # fmt: skip
def test_a_python_command_is_understood_whole(rest, options, module, script, args):
    expected = PythonCommand((sys.executable, *options), module=module, script=script, args=tuple(args))
    assert parse([sys.executable, *rest], ENV) == expected


@pytest.mark.parametrize(
    "command, reason",
    [
        (["python", "-c", "pass"], "option -c"),
        (["python", "-"], "option -"),
        (["python", "-i", "x.py"], "option -i"),
        (["python"], "without a module or script"),
        (["node", "server.js"], "no program on the search path"),
        (["/bin/sh", "-c", "x"], "/bin/sh is not Python"),
    ],
)
def test_another_command_is_left_alone_with_a_reason(command, reason):
    assert reason in parse(command, ENV)


@pytest.mark.parametrize(
    "first, interpreter",
    [
        ("#!/usr/bin/python3", ("/usr/bin/python3",)),
        ("#!/usr/bin/env python3.11", ("python3.11",)),
        ("#!/opt/venv/bin/python -sE", ("/opt/venv/bin/python", "-sE")),
        ("#!/bin/sh", None),
        ("import os", None),
    ],
)
def test_an_installed_script_says_its_interpreter(tmp_path, first, interpreter):
    script = tmp_path / "server"
    script.write_text(first + "\n")
    script.chmod(0o755)
    parsed = parse(["server", "--x"], {"PATH": str(tmp_path)})
    if interpreter is None:
        assert parsed == "server is not Python"
    else:
        assert parsed == PythonCommand(interpreter, script=str(script), args=("--x",))
