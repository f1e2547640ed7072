"""The one place where a verb turns a known fault into one line and an exit code.

Invariant: faults that a user can mend end in a message and exit code 2, without a traceback; anything
else keeps its traceback, because it is a defect of ours.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from protocol.bus import BusError
from protocol.config import ConfigError
from protocol.log import LogError
from rollout_engine.errors import ConfigurationError, EpisodeSystemError

KNOWN = (ConfigError, ConfigurationError, BusError, LogError, EpisodeSystemError)


@contextmanager
def exit_on_known_fault(verb: str) -> Iterator[None]:
    """Print a known fault, alone or in exception groups, as ``verb: message``; exit with 2, or with 130 on Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(130)
    except KNOWN as error:
        _fail(verb, error)
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt):
            sys.exit(130)
        known, unknown = group.split(KNOWN)
        if unknown is not None or known is None:
            raise
        _fail(verb, _first(known))


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _fail(verb: str, error: BaseException) -> None:
    Console(stderr=True).print(f"[red]{verb}:[/] ", end="")
    Console(stderr=True).print(str(error), markup=False, highlight=False)
    sys.exit(2)
