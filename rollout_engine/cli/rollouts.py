"""``bin/rollouts``: run the engine of one training run until its last step has a manifest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import trio
from cyclopts import Parameter
from rich.console import Console

from protocol import config as configuration
from protocol.bus import connect
from protocol.cli.verb import ConfigOption, DryRunOption, SetOption, verb
from protocol.config import Config
from rollout_engine.actors.pool import ActorPool
from rollout_engine.cli.failures import exit_on_known_fault
from rollout_engine.cli.progress import StepDisplay
from rollout_engine.curation.pool import load_pool
from rollout_engine.engine import Engine, model_folder, open_setup
from rollout_engine.tokens.template import ChatTemplate

app = verb("rollouts", __doc__)
console = Console()


@app.default
def rollouts(
    *,
    config: ConfigOption,
    actors: Annotated[
        str, Parameter(help="URLs of actors, separated by commas. Empty: those registered on the bus.")
    ] = "",
    set: SetOption = (),
    dry_run: DryRunOption = False,
) -> None:
    """Run episodes in groups, grade them, and publish trajectories and batches."""
    urls = [url for url in actors.split(",") if url]
    with exit_on_known_fault("rollouts"):
        resolved = configuration.load(config, set)
        trio.run(_dry_run if dry_run else _run, resolved, urls)


async def _run(config: Config, urls: Sequence[str]) -> None:
    pool = load_pool(config)
    async with (
        connect(config.nats, config.run) as bus,
        ActorPool.on_bus(bus, config, urls) as policy,
        open_setup(config, policy) as setup,
    ):
        with StepDisplay(config, console) as display:
            await Engine(config, pool, setup, bus, display, policy.require).run()
    console.print(f"[green]run {config.run}: all {config.learner.steps} steps are on the log[/]")


async def _dry_run(config: Config, urls: Sequence[str]) -> None:
    console.print(configuration.dump(config), markup=False, highlight=False)
    pool = load_pool(config)
    ChatTemplate.from_folder(model_folder(config))
    async with connect(config.nats, config.run) as bus, ActorPool.on_bus(bus, config, urls):
        console.print(f"pool: {len(pool)} tasks; NATS and the actors answer")


if __name__ == "__main__":
    app()
