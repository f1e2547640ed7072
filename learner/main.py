"""bin/learner: train the policy on the batches of a run, live or from exported logs."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Console

from learner.errors import BatchError
from protocol.config import Config, ConfigError, dump, load
from protocol.errors import BusError
from protocol.log import LogError

app = App(name="learner", help="Train the policy on the batches of a run.")


@app.default
def main(
    *,
    config: Path,
    set: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    mesh: str | None = None,
    replay: Annotated[tuple[Path, ...], Parameter(consume_multiple=True, negative="")] = (),
    dry_run: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Train the policy on the batches of a run.

    Parameters
    ----------
    config
        The run's configuration, a YAML file.
    set
        KEY.PATH=VALUE: change one value of it; may be given again.
    mesh
        DATAxMODEL, for example 3x8; short for --set learner.mesh=3x8.
    replay
        Exported log files to train from instead of the live run.
    dry_run
        Print the resolved configuration, what it means and what a device must hold; start nothing.
    """
    console, errors = Console(), Console(stderr=True)
    try:
        resolved = load(config, [*set, *([f"learner.mesh={mesh}"] if mesh else [])])
        if dry_run:
            _dry_run(resolved, console)
        else:
            _train(resolved, replay, console)
    except (ConfigError, BusError, LogError, BatchError) as error:
        errors.print(f"[red]learner:[/] {error}", highlight=False, soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        errors.print("learner: stopped; the same command goes on from the last checkpoint")
        return 130
    return 0


def _train(config: Config, replay: tuple[Path, ...], console: Console) -> None:
    # JAX takes seconds to import: a wrong key in the configuration should not wait for it.
    import jax

    from learner.batches import LogBatches, NatsBatches
    from learner.train import Trainer

    if jax.config.jax_compilation_cache_dir is None:
        # A restarted learner is back at work without compiling again.
        jax.config.update("jax_compilation_cache_dir", str(Path(config.folder).resolve() / ".compiled"))

    with ExitStack() as stack:
        if replay:
            source = LogBatches(replay)
            steps = min(config.learner.steps, max(source.steps, default=-1) + 1)
            trainer = stack.enter_context(Trainer(config, source, lambda version: None, console))
        else:
            source, steps = stack.enter_context(NatsBatches(config)), config.learner.steps
            trainer = stack.enter_context(Trainer(config, source, source.publish, console))
        trainer.run(steps)


def _dry_run(config: Config, console: Console) -> None:
    from learner.dry_run import device_memory, table

    console.print(dump(config), highlight=False, soft_wrap=True)
    memory = device_memory(config)
    console.print(table(config, memory))
    console.print(f"fingerprint {config.fingerprint()}: can start", highlight=False)


if __name__ == "__main__":
    sys.exit(app(result_action="return_value"))
