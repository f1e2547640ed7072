"""Orbax checkpoints: the state after an update, from which a run goes on bit for bit.

Invariant (rule 12): checkpoint + log = state. A checkpoint holds parameters, optimizer state and the few facts the
log doesn't (which step, under which learning configuration, the probe). It appears whole or not at all, and one
that can't be read back is named and moved aside, never deleted, and the one before it is used.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from rich.console import Console

from learner.step import State
from protocol.config import ConfigError


class Checkpoints:
    """The folder ``runs/RUN/checkpoints``, one subfolder a step; the last ``keep`` stay."""

    def __init__(self, folder: Path, keep: int, fingerprint: Callable[[int], str], console: Console):
        """``fingerprint`` names what decides the weights after so many updates; a checkpoint made under another one
        is refused."""
        self.fingerprint, self.keep, self.console = fingerprint, keep, console
        self.manager = ocp.CheckpointManager(
            folder.resolve(),
            options=ocp.CheckpointManagerOptions(max_to_keep=keep, create=True, enable_async_checkpointing=False),
        )

    def save(self, step: int, state: State, facts: dict[str, Any]) -> None:
        """Make the state after ``step`` updates durable before returning. An older checkpoint is deleted only then.

        A failure (Orbax and TensorStore raise many kinds) leaves the older ones, and nothing of this one.
        """
        if step in self.manager.all_steps():
            return
        facts = {**facts, "fingerprint": self.fingerprint(step)}
        items = ocp.args.Composite(state=ocp.args.StandardSave(state), facts=ocp.args.JsonSave(facts))
        try:
            self.manager.save(step, args=items)
        except BaseException:
            for partial in Path(self.manager.directory).glob(f"{step}.orbax-checkpoint-tmp*"):
                shutil.rmtree(partial, ignore_errors=True)
            raise

    def restore(self, like: State) -> tuple[int, State, dict[str, Any]] | None:
        """(step, state, facts) of the newest readable checkpoint, or None.

        ``like``: shapes with shardings: another mesh than it was saved on is fine. Raises :class:`ConfigError` when
        the checkpoint belongs to another learning configuration.
        """
        for step in sorted(self.manager.all_steps(), reverse=True):
            try:
                facts = self._read(step, facts=ocp.args.JsonRestore()).facts
                self._require_same(step, facts["fingerprint"])
                state = jax.block_until_ready(self._read(step, state=ocp.args.StandardRestore(like)).state)
            except ConfigError:
                raise
            except Exception as error:  # Orbax and TensorStore raise many kinds for a file that is cut or gone
                summary = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
                aside = self._move_aside(step)
                self.console.print(
                    f"[yellow]checkpoint {step} is damaged and was moved to {aside}[/]: {summary}", highlight=False
                )
                continue
            return step, state, facts
        return None

    @property
    def oldest(self) -> int:
        """The step of the oldest state that a restart may fall back to: of a checkpoint, or of the base weights (0)
        until there are as many checkpoints as are kept."""
        return sorted([0, *self.manager.all_steps()])[-self.keep :][0]

    def _read(self, step: int, **items: Any) -> Any:
        return self.manager.restore(step, args=ocp.args.Composite(**items))

    def _require_same(self, step: int, fingerprint: str) -> None:
        # Before the state is read: another configuration may have other shapes, which would look like damage.
        if fingerprint != self.fingerprint(step):
            raise ConfigError(
                f"checkpoint {step} was made under another learning configuration ({fingerprint}, now "
                f"{self.fingerprint(step)}): restore the settings, or fork the run at step {step} and change them "
                "there (bin/trajectories fork)"
            )

    def _move_aside(self, step: int) -> Path:
        # What can't be read here and now (too little memory, another model) may be whole all the same.
        folder = Path(self.manager.directory)
        shelf = folder.with_name(folder.name + "-unreadable")
        shelf.mkdir(exist_ok=True)
        aside = shelf / f"{step}-{len(list(shelf.iterdir()))}"
        (folder / str(step)).rename(aside)
        self.manager.reload()
        return aside

    def close(self) -> None:
        self.manager.close()
