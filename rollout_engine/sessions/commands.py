"""What of a server's command is Python's: which interpreter, which of its options, which module or script.

Invariant: a command is either understood whole or left alone with a reason; nothing of it is dropped.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PYTHON = re.compile(r"python(3(\.\d+)?)?$")
FLAGS = re.compile(r"-[bBdEIOPqRsSuv]+$")
WITH_VALUE = ("-W", "-X")


@dataclass(frozen=True)
class PythonCommand:
    """``interpreter``: the program and its options; exactly one of ``module`` and ``script`` is set."""

    interpreter: tuple[str, ...]
    module: str = ""
    script: str = ""
    args: tuple[str, ...] = ()


def parse(command: Sequence[str], env: Mapping[str, str], cwd: str | None = None) -> PythonCommand | str:
    """The Python server that a command starts, or why it isn't one."""
    program, *rest = command
    found = shutil.which(program, path=env.get("PATH"))
    if PYTHON.match(Path(program).name):
        return _arguments([found or program], rest)
    if found is None:
        return f"{program} is no program on the search path"
    interpreter = _shebang(Path(found))
    if interpreter is None:
        return f"{program} is not Python"
    return PythonCommand(interpreter, script=found, args=tuple(rest))


def _arguments(interpreter: list[str], rest: list[str]) -> PythonCommand | str:
    while rest:
        option = rest.pop(0)
        if FLAGS.match(option):
            interpreter.append(option)
        elif option in WITH_VALUE and rest:
            interpreter += [option, rest.pop(0)]
        elif option[:2] in WITH_VALUE:
            interpreter.append(option)
        elif option == "-m" and rest:
            return PythonCommand(tuple(interpreter), module=rest[0], args=tuple(rest[1:]))
        elif option.startswith("-"):
            return f"Python's option {option} has no module or script to import"
        else:
            return PythonCommand(tuple(interpreter), script=option, args=tuple(rest))
    return "it runs Python without a module or script"


def _shebang(path: Path) -> tuple[str, ...] | None:
    """The interpreter of a script as installers write it: ``#!/where/python``, with or without options, or env."""
    try:
        with path.open("rb") as file:
            first = file.readline(300)
    except OSError:
        return None
    if not first.startswith(b"#!"):
        return None
    words = first[2:].decode(errors="replace").split()
    if words and Path(words[0]).name == "env":
        words = words[1:]
    if words and PYTHON.match(Path(words[0]).name) and all(FLAGS.match(word) for word in words[1:]):
        return tuple(words)
    return None
