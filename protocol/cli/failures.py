"""The one place where the protocol's verbs turn a known fault into a message and exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from rich.console import Console

from protocol.config import ConfigError
from protocol.errors import BusError
from protocol.log import LogError
from protocol.server import ServerError


@contextmanager
def exit_on_known_fault(verb: str) -> Iterator[None]:
    """Print a fault that the user can mend as ``verb: message`` and exit with 2; with 130 on Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(130)
    except (BusError, ConfigError, LogError, ServerError) as error:
        fail(verb, str(error))


def fail(verb: str, message: str) -> NoReturn:
    """Print ``verb: message`` to standard error and exit with 2."""
    Console(stderr=True, soft_wrap=True).print(f"{verb}: {message}", markup=False, highlight=False)
    sys.exit(2)
