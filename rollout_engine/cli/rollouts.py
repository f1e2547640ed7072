"""``bin/rollouts``: run the engine of one training run until its last step has a manifest.

Episodes run in groups, are graded and published; each step ends with its batch. An engine that was killed goes on
where it was: run the same command again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import trio
from cyclopts import Parameter
from rich.console import Console

from protocol import config as configuration
from protocol.bus import connect
from protocol.cli.verb import ConfigOption, DryRunOption, SetOption, print_configuration, verb
from protocol.config import Config
from rollout_engine.actors.pool import ActorPool
from rollout_engine.actors.slots import Slots
from rollout_engine.cli.failures import exit_on_known_fault
from rollout_engine.cli.options import split_urls
from rollout_engine.cli.progress import StepDisplay
from rollout_engine.curation.pool import load_pool, probed_counts
from rollout_engine.engine import Engine, load_template, open_setup

app = verb("rollouts", __doc__)
console = Console()


@app.default
def rollouts(
    *,
    config: ConfigOption,
    actors: Annotated[
        tuple[str, ...],
        Parameter(
            consume_multiple=True,
            help="URLs of actors, separated by commas or blanks. Without any: those registered on the bus.",
        ),
    ] = (),
    set: SetOption = (),
    dry_run: DryRunOption = False,
) -> None:
    """Run every step that has no manifest on the log yet."""
    with exit_on_known_fault("rollouts"):
        resolved = configuration.load(config, set)
        trio.run(_dry_run if dry_run else _run, resolved, split_urls(actors))


async def _run(config: Config, urls: Sequence[str]) -> None:
    pool = load_pool(config)
    async with (
        connect(config.nats, config.run) as bus,
        ActorPool.on_bus(bus, config, urls) as policy,
        open_setup(config, policy) as setup,
    ):
        slots = Slots(config.rollout)
        with StepDisplay(config, console, lambda: slots.limit) as display:
            engine = Engine(config, pool, setup, bus, display, policy.require, probed_counts(config), slots)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(slots.follow, policy, bus, config.actor.health_every)
                await engine.run()
                nursery.cancel_scope.cancel()
    console.print(f"[green]run {config.run}: all {config.learner.steps} steps are on the log[/]")


async def _dry_run(config: Config, urls: Sequence[str]) -> None:
    print_configuration(config, console)
    pool = load_pool(config)
    load_template(config)
    async with connect(config.nats, config.run, create=False) as bus, ActorPool.on_bus(bus, config, urls):
        console.print(f"pool: {len(pool)} tasks; NATS and the actors answer")


if __name__ == "__main__":
    app()
