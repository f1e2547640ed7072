"""What every verb's command line has in common: how it is declared, and the options that all take.

Invariant: a verb takes the options that its ``--help`` lists and no others, and each of them says what it is for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.console import Console

from protocol.config import Config, dump

ConfigOption = Annotated[Path, Parameter(help="The run's YAML file.")]
SetOption = Annotated[
    tuple[str, ...], Parameter(help="KEY.PATH=VALUE: change one value of the configuration; may be given again.")
]
DryRunOption = Annotated[
    bool, Parameter(help="Print the resolved configuration, check what can be checked, and start nothing.")
]


def verb(name: str, help: str | None) -> App:
    """The command line of ``bin/NAME``. ``help`` says what it does: a verb's module docstring.

    Off is what cyclopts would add by itself: ``--version``, a ``--no-`` or ``--empty-`` form of every option, and
    defaults that say nothing.
    """
    options = Parameter(negative=(), show_default=_shown_default)
    return App(name=name, help=help, version_flags=(), default_parameter=options)


def print_configuration(config: Config, console: Console) -> None:
    """What every dry run prints first: the resolved configuration as YAML, with its fingerprint."""
    console.print(dump(config), markup=False, highlight=False, soft_wrap=True)


def _shown_default(value: Any) -> str | None:
    if value is None or value is False or value in ((), ""):
        return None
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
