import errno

import pytest

from protocol.cli.failures import exit_on_known_fault, leaves
from protocol.config import ConfigError


@pytest.mark.parametrize(
    "error, code",
    [
        (ConfigError("a [b] is wrong"), 2),
        (ExceptionGroup("g", [ExceptionGroup("h", [ConfigError("a [b] is wrong")])]), 2),
        (KeyboardInterrupt(), 130),
        (BaseExceptionGroup("g", [ConfigError("x"), KeyboardInterrupt()]), 130),
    ],
)
def test_known_faults_become_a_message_and_an_exit_code(error, code, capsys):
    with pytest.raises(SystemExit) as exit, exit_on_known_fault("verb"):
        raise error
    assert exit.value.code == code
    assert capsys.readouterr().err == ("verb: a [b] is wrong\n" if code == 2 else "verb: stopped\n")


@pytest.mark.parametrize("error", [ZeroDivisionError(), ExceptionGroup("g", [ConfigError("x"), ZeroDivisionError()])])
def test_defects_keep_their_traceback(error):
    with pytest.raises(type(error)), exit_on_known_fault("verb"):
        raise error


def test_leaves_of_a_nested_group():
    errors = [ConfigError("a"), ConfigError("b"), ConfigError("c")]
    assert leaves(ExceptionGroup("g", [errors[0], ExceptionGroup("h", errors[1:])])) == errors


@pytest.mark.parametrize("group", [False, True])
def test_a_full_disk_is_a_known_fault_of_every_verb(group, capsys):
    error = OSError(errno.ENOSPC, "No space left on device", "runs/demo/metrics.jsonl")
    with pytest.raises(SystemExit) as exit, exit_on_known_fault("verb"):
        raise ExceptionGroup("g", [error]) if group else error
    assert exit.value.code == 2
    told = "verb: no space left for runs/demo/metrics.jsonl: make room, then run the same command again; it goes on"
    assert capsys.readouterr().err.startswith(told)
    with pytest.raises(PermissionError), exit_on_known_fault("verb"):
        raise PermissionError(errno.EACCES, "denied")
