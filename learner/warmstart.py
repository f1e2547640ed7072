"""bin/warmstart: make the base policy's weights by supervised learning on demonstrations."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Console

from protocol.config import ConfigError, load

app = App(name="warmstart", help="Make the base policy's weights by supervised learning on demonstrations.")


@app.default
def main(
    *,
    config: Path,
    set: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    demonstrations: Path | None = None,
) -> int:
    """Make the base policy's weights by supervised learning on demonstrations.

    Parameters
    ----------
    config
        The run's configuration, a YAML file.
    set
        KEY.PATH=VALUE: change one value of it; may be given again.
    demonstrations
        The file that bin/demonstrations made; by default the one in the model's folder.
    """
    from learner.sft import WarmStartError, warm_start
    from learner.train import model_folder

    console, errors, started = Console(), Console(stderr=True), time.monotonic()
    try:
        resolved = load(config, set)
        folder = model_folder(resolved)
        file = demonstrations or folder / "demonstrations.npz"
        result = warm_start(folder, file, resolved.warmstart, resolved.seed, console)
    except (ConfigError, WarmStartError) as error:
        errors.print(f"[red]warmstart:[/] {error}", highlight=False, soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        errors.print("warmstart: stopped; nothing was written")
        return 130
    console.print(
        f"warm start: {result['steps']} steps, loss {result['loss']:.3f}, {result['copy_errors']:.1%} of held-back "
        f"demonstrations copied wrongly, {time.monotonic() - started:.0f} s, weights in {folder}",
        highlight=False,
    )
    return 0


if __name__ == "__main__":
    sys.exit(app(result_action="return_value"))
