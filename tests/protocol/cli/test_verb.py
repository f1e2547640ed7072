"""A verb's command line shows defaults that say something, and takes nothing that its help doesn't list."""

import io
from typing import Annotated

import pytest
from cyclopts import Parameter
from rich.console import Console

from protocol.cli.verb import ConfigOption, DryRunOption, SetOption, verb


@pytest.fixture
def app():
    app = verb("try", "``bin/try``: try it.")

    @app.default
    def command(
        *,
        config: ConfigOption,
        count: Annotated[int, Parameter(help="How many.")] = 0,
        names: Annotated[tuple[str, ...], Parameter(help="Which.")] = ("a", "b"),
        set: SetOption = (),
        dry_run: DryRunOption = False,
    ) -> None:
        print(config, count, names, set, dry_run)

    return app


def test_help_shows_defaults_that_say_something(app):
    out = io.StringIO()
    app.help_print((), console=Console(file=out, width=200))
    assert "[default: 0]" in out.getvalue() and "[default: a, b]" in out.getvalue()
    assert out.getvalue().count("default") == 2


def test_options_repeat_and_stray_ones_are_refused(app, capsys):
    app(["--config", "c", "--set", "a=1", "--set", "b=2", "--dry-run"], result_action="return_value")
    assert capsys.readouterr().out == "c 0 ('a', 'b') ('a=1', 'b=2') True\n"
    for stray in ("--version", "--no-dry-run", "--empty-set"):
        with pytest.raises(SystemExit) as exit:
            app(["--config", "c", stray])
        assert exit.value.code != 0
