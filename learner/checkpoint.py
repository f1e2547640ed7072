"""Orbax checkpoints: the state after an update, from which a run goes on bit for bit.

Invariant (rule 12): checkpoint + log = state. A checkpoint holds parameters, optimizer state and the few facts the
log doesn't (which step, under which learning configuration, the probe). It appears whole or not at all, and one
that can't be read back is named, removed, and the one before it is used.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from rich.console import Console

from learner.step import State
from protocol.config import ConfigError


class Checkpoints:
    """The folder ``runs/RUN/checkpoints``, one subfolder a step; the last ``keep`` stay."""

    def __init__(self, folder: Path, keep: int, fingerprint: str, console: Console):
        """``fingerprint`` names what decides the weights; a checkpoint made under another one is refused."""
        self.fingerprint, self.console = fingerprint, console
        self.manager = ocp.CheckpointManager(
            folder.resolve(),
            options=ocp.CheckpointManagerOptions(max_to_keep=keep, create=True, enable_async_checkpointing=False),
        )

    def save(self, step: int, state: State, facts: dict[str, Any]) -> None:
        """Make the state after ``step`` updates durable before returning."""
        if step in self.manager.all_steps():
            return
        facts = {**facts, "fingerprint": self.fingerprint}
        self.manager.save(
            step, args=ocp.args.Composite(state=ocp.args.StandardSave(state), facts=ocp.args.JsonSave(facts))
        )

    def restore(self, like: State) -> tuple[int, State, dict[str, Any]] | None:
        """(step, state, facts) of the newest readable checkpoint, or None.

        ``like``: shapes with shardings: another mesh than it was saved on is fine. Raises :class:`ConfigError` when
        the checkpoint belongs to another learning configuration.
        """
        for step in sorted(self.manager.all_steps(), reverse=True):
            try:
                restored = self.manager.restore(
                    step, args=ocp.args.Composite(state=ocp.args.StandardRestore(like), facts=ocp.args.JsonRestore())
                )
                state, facts = jax.block_until_ready(restored.state), restored.facts
                fingerprint = facts["fingerprint"]
            except Exception as error:  # Orbax and TensorStore raise many kinds for a file that is cut or gone
                summary = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
                self.console.print(
                    f"[yellow]checkpoint {step} is damaged and was removed[/]: {summary}", highlight=False
                )
                self.manager.delete(step)
                continue
            if fingerprint != self.fingerprint:
                raise ConfigError(
                    f"checkpoint {step} was made under another learning configuration ({fingerprint}, now "
                    f"{self.fingerprint}): restore the settings, or give the run another name"
                )
            return step, state, facts
        return None

    def close(self) -> None:
        self.manager.close()
