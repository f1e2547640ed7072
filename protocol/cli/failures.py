"""The one place where a verb turns a known fault into one message and an exit code.

Invariant: a fault that a user can mend ends in ``verb: message`` and exit code 2, without a traceback;
anything else keeps its traceback, because it is a defect of ours.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from rich.console import Console

from protocol.config import ConfigError
from protocol.errors import BusError
from protocol.log import LogError
from protocol.server import ServerError

Faults = tuple[type[BaseException], ...]
PROTOCOL_FAULTS: Faults = (BusError, ConfigError, LogError, ServerError)


@contextmanager
def exit_on_known_fault(verb: str, known: Faults = PROTOCOL_FAULTS, stopped: str = "stopped") -> Iterator[None]:
    """Report a fault of ``known``, alone or in exception groups, and exit with 2; say ``stopped`` and exit with 130
    on Ctrl-C. A full disk is a known fault of every verb."""
    try:
        yield
    except KeyboardInterrupt:
        fail(verb, stopped, 130)
    except known as error:
        fail(verb, str(error))
    except OSError as error:
        if not _full(error):
            raise
        fail(verb, _make_room(error))
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt):
            fail(verb, stopped, 130)
        faults, defects = group.split(lambda error: isinstance(error, known) or _full(error))
        if defects is not None or faults is None:
            raise
        first = leaves(faults)[0]
        fail(verb, _make_room(first) if _full(first) else str(first))


def _full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _make_room(error: OSError) -> str:
    where = f"for {error.filename}" if error.filename else "on a disk"
    return f"no space left {where}: make room, then run the same command again; it goes on where it was"


def leaves(error: BaseException) -> list[BaseException]:
    """The exceptions of a group, whatever its depth; of a plain exception, itself."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for child in error.exceptions for leaf in leaves(child)]
    return [error]


def fail(verb: str, message: str, code: int = 2) -> NoReturn:
    """Print ``verb: message`` to standard error and exit with ``code``."""
    Console(stderr=True, soft_wrap=True).print(f"{verb}: {message}", markup=False, highlight=False)
    sys.exit(code)
