"""``bin/learner``: train the policy on the batches of a run, live or from exported logs.

A learner that was killed goes on from its last checkpoint: run the same command again.

Over several nodes, start one on each. Under Slurm (srun) and Kubernetes (an indexed Job) they find each other; else
name the first one's address, how many there are, and which this is.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.console import Console

from learner.errors import BatchError, CheckpointFailed, DiskFull, ExportFailed, ProcessesError
from learner.processes import Place, first, join, locate, together
from protocol.cli.failures import PROTOCOL_FAULTS, exit_on_known_fault
from protocol.cli.verb import ConfigOption, DryRunOption, SetOption, print_configuration, verb
from protocol.config import Config, ConfigError, load

app = verb("learner", __doc__)
console = Console()


@app.default
def learner(
    *,
    config: ConfigOption,
    mesh: Annotated[str | None, Parameter(help="DATAxMODEL, such as 3x8: short for --set learner.mesh=3x8.")] = None,
    replay: Annotated[
        tuple[Path, ...], Parameter(consume_multiple=True, help="Train from these exported logs, without a live run.")
    ] = (),
    coordinator: Annotated[
        str | None, Parameter(help="Of several processes: HOST:PORT, where the first one listens for the others.")
    ] = None,
    processes: Annotated[int | None, Parameter(help="How many there are.")] = None,
    process: Annotated[int | None, Parameter(help="Which this one is, from 0.")] = None,
    set: SetOption = (),
    dry_run: DryRunOption = False,
) -> None:
    """Train until the run's last step, or the end of the exported logs."""
    with _faults():
        resolved = load(config, [*set, *([f"learner.mesh={mesh}"] if mesh else [])])
        place = locate(coordinator, processes, process, os.environ)
        if dry_run:
            _dry_run(resolved, replay)
            return
        if place:
            join(place, resolved.learner)
    with together(place, resolved.learner), _faults():
        _train(resolved, replay, place)


@app.command
def export(
    *,
    config: ConfigOption,
    out: Annotated[Path, Parameter(help="Folder to make.")],
    step: Annotated[int | None, Parameter(help="Of the checkpoint. Default: the last one's.")] = None,
    mesh: Annotated[str | None, Parameter(help="DATAxMODEL to restore it on. Default: learner.mesh.")] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16"] | None, Parameter(help="Of the tensors. Default: learner.weights_dtype.")
    ] = None,
    adapter: Annotated[
        bool, Parameter(help="Of a LoRA run: its adapter in PEFT's format instead of the merged model.", negative=())
    ] = False,
    set: SetOption = (),
) -> None:
    """Write a checkpoint's policy as a Hugging Face folder, with configuration, tokenizer and chat template, and verify
    it: digests read again from the disk, every tensor, and log-probabilities on the run's probe."""
    with _faults():
        resolved = load(config, [*set, *([f"learner.mesh={mesh}"] if mesh else [])])
        from learner.export import export as write
        from learner.export import export_adapter

        if adapter:
            if dtype:
                raise ConfigError("--dtype is of the merged model's tensors: leave it out, or --adapter")
            folder, of = export_adapter(resolved, step, out)
            console.print(f"{folder}: the adapter after {of} updates", highlight=False)
            return
        done = write(resolved, step, out, dtype, console)
        console.print(
            f"{done.folder}: the policy after {done.step} updates, verified; rounding moves log-probabilities by "
            f"{done.difference:.2g} on average",
            highlight=False,
        )


def _faults() -> AbstractContextManager[None]:
    stopped = "stopped; the same command goes on from the last checkpoint"
    known = (*PROTOCOL_FAULTS, BatchError, CheckpointFailed, DiskFull, ExportFailed, ProcessesError)
    return exit_on_known_fault("learner", known, stopped)


def _train(config: Config, replay: tuple[Path, ...], place: Place | None = None) -> None:
    # JAX takes seconds to import: a wrong key in the configuration should not wait for it.
    import jax

    from learner.batches import LogBatches, NatsBatches
    from learner.lineage import Lineage, Stretch, follow
    from learner.train import Trainer

    if jax.config.jax_compilation_cache_dir is None:
        # A restarted learner is back at work without compiling again.
        jax.config.update("jax_compilation_cache_dir", str(Path(config.folder).resolve() / ".compiled"))

    speaker = console if first() else Console(quiet=True)
    if place:
        speaker.print(f"{place.processes} processes, {jax.device_count()} devices", highlight=False)
    with ExitStack() as stack:
        if replay:
            source = LogBatches(replay)
            steps = min(config.learner.steps, max(source.steps, default=-1) + 1)
        else:
            source, steps = stack.enter_context(NatsBatches(config)), config.learner.steps
        lineage = Lineage.of(config, source.origin())

        def start(stretch: Stretch) -> Trainer:
            # Actors have no use for the policies of a parent's steps, which are rolled out already.
            silent = bool(replay) or stretch.until is not None or not first()
            announce = (lambda version: None) if silent else source.publish
            return Trainer(stretch.config, source, announce, speaker, lineage.fingerprint)

        follow(lineage, steps, start)


def _dry_run(config: Config, replay: tuple[Path, ...]) -> None:
    from learner.batches import LogBatches
    from learner.dry_run import check_fits, measure
    from learner.dry_run_tables import tables

    print_configuration(config, console)
    need = measure(config)
    console.print(tables(config, need))
    check_fits(config, need)
    if need.sized:
        folder = config.path / config.model.folder
        console.print(f"fits; {folder} is not there yet: put the model's weights, config.json and tokenizer there")
        return
    if replay:
        steps = LogBatches(replay).steps
        source = f"the logs hold the batches of {len(steps)} steps"
    else:
        asyncio.run(_reach(config))
        source = "NATS answers"
    console.print(f"{source}; fingerprint {config.fingerprint()}: can start", highlight=False)


async def _reach(config: Config) -> None:
    from protocol.bus import check

    await check(config.nats)


if __name__ == "__main__":
    app()
