"""``bin/warmstart``: make the base policy's weights by supervised learning on demonstrations.

Weights are written only when the policy copies ids and amounts from its context.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from learner.errors import WarmStartError
from protocol.cli.failures import PROTOCOL_FAULTS, exit_on_known_fault
from protocol.cli.verb import ConfigOption, DryRunOption, SetOption, print_configuration, verb
from protocol.config import Config, load

app = verb("warmstart", __doc__)
console = Console()


@app.default
def warmstart(
    *,
    config: ConfigOption,
    demonstrations: Annotated[
        Path | None, Parameter(help="The file that bin/demonstrations made; by default the one in the model's folder.")
    ] = None,
    set: SetOption = (),
    dry_run: DryRunOption = False,
) -> None:
    """Train from scratch and write ``model.safetensors`` into the model's folder."""
    with exit_on_known_fault("warmstart", (*PROTOCOL_FAULTS, WarmStartError), "stopped; nothing was written"):
        (_dry_run if dry_run else _train)(load(config, set), demonstrations)


def _train(config: Config, demonstrations: Path | None) -> None:
    # JAX takes seconds to import: a wrong key in the configuration should not wait for it.
    from learner.sft import warm_start
    from learner.train import model_folder

    started, folder = time.monotonic(), model_folder(config)
    file = demonstrations or folder / "demonstrations.npz"
    result = warm_start(folder, file, config.warmstart, config.seed, console)
    console.print(
        f"warm start: {result['steps']} steps, loss {result['loss']:.3f}, {result['copy_errors']:.1%} of held-back "
        f"demonstrations copied wrongly, {time.monotonic() - started:.0f} s, weights in {folder}",
        highlight=False,
        soft_wrap=True,
    )


def _dry_run(config: Config, demonstrations: Path | None) -> None:
    from learner.models.huggingface import read_config
    from learner.sft import Demonstrations
    from learner.train import model_folder

    print_configuration(config, console)
    folder = model_folder(config)
    file = demonstrations or folder / "demonstrations.npz"
    found = Demonstrations.read(file, read_config(folder).vocab_size)
    summary = f"{len(found)} demonstrations of {len(found.ids)} tokens; {folder} can be trained"
    console.print(summary, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    app()
