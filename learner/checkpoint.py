"""Orbax checkpoints: the state after an update, from which a run goes on bit for bit.

Invariant (rule 12): checkpoint + log = state. A checkpoint holds parameters, optimizer state and the few facts the
log doesn't (which step, under which learning configuration, the probe). It appears whole or not at all, and one
that can't be read back is named and moved aside, never deleted, and the one before it is used.

Saving is asynchronous: :meth:`Checkpoints.save` returns once the state has been taken, and the files are written
while training goes on. Only where host memory is too small for that does it take a part at a time, and wait. Until
:meth:`Checkpoints.settled` has said so, nothing is durable, nothing older is deleted, and the log lets go of nothing.
Several processes write and read their own parts, and all call the same methods in the same order.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from rich.console import Console

from learner.errors import ProcessesError
from learner.processes import first, gathered, of_another
from learner.retention import Retention
from learner.step import State
from protocol.config import ConfigError


class Checkpoints:
    """The folder ``runs/RUN/checkpoints``, one subfolder a step."""

    def __init__(
        self,
        folder: Path,
        retention: Retention,
        fingerprint: Callable[[int], str],
        console: Console,
        scores: Callable[[], Mapping[int, float]] = dict,
        timeout: float = 1800.0,
        memory_gb: float | None = None,
    ):
        """``fingerprint`` names what decides the weights after so many updates; a checkpoint made under another one
        is refused. ``scores``: held-out scores so far, by step. ``timeout``: seconds that a save may take.
        ``memory_gb``: of host memory, that it may take in this process; None: as much as there is to write."""
        self.folder, self.retention, self.console = folder.resolve(), retention, console
        self.fingerprint, self.scores = fingerprint, scores
        if first():
            self.folder.mkdir(parents=True, exist_ok=True)
            self._sweep("*.orbax-checkpoint-tmp*")
            self._sweep(".*.old")
        gathered(np.zeros(1))
        self.saver = ocp.AsyncCheckpointer(
            ocp.CompositeCheckpointHandler(state=_states(memory_gb), facts=ocp.JsonCheckpointHandler()),
            async_options=ocp.options.AsyncOptions(
                timeout_secs=max(1, round(timeout)), create_directories_asynchronously=False
            ),
        )
        self.at_once = memory_gb is None
        self.writing: int | None = None
        """The step whose checkpoint is being written."""

    def steps(self) -> list[int]:
        """Steps that have a whole checkpoint, ascending."""
        return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdecimal())

    @property
    def oldest(self) -> int:
        """The step of the oldest state that a restart may fall back to."""
        return self.retention.oldest(self.steps())

    def save(self, step: int, state: State, facts: dict[str, Any]) -> None:
        """Begin to save the state after ``step`` updates. It is the caller's again when this returns, to be donated.

        Waits for a save that is being written, and for this one where it is taken a part at a time. Raises as
        :meth:`settled`.
        """
        self.settled(wait=True)
        if step in self.steps():
            return
        facts = {**facts, "fingerprint": self.fingerprint(step)}
        items = ocp.args.Composite(state=ocp.args.PyTreeSave(state), facts=ocp.args.JsonSave(facts))
        self.writing = step
        try:
            self.saver.save(self.folder / str(step), args=items)
        except BaseException:
            self._forget()
            raise
        if not self.at_once:
            self.settled(wait=True)

    def settled(self, wait: bool = False) -> bool:
        """Whether nothing is being written any more, so that whatever was saved is durable; ``wait`` until then.

        Deletes what nothing wants any more. Raises what went wrong (Orbax and TensorStore raise many kinds) with a
        save since the last call: then there is nothing of that one, and all of the older ones.
        """
        try:
            self.saver.check_for_errors()
            written = self.writing is None or (self.folder / str(self.writing)).exists()
            if not (written or wait):
                return False
            self.saver.wait_until_finished()
        except BaseException:
            self._forget()
            raise
        if self.writing is not None:
            self.writing = None
            self._prune()
        return True

    def restore(self, like: State) -> tuple[int, State, dict[str, Any]] | None:
        """(step, state, facts) of the newest readable checkpoint, or None.

        ``like``: shapes with shardings: another mesh, or number of processes, than it was saved on is fine. Raises
        :class:`ConfigError` when the checkpoint belongs to another learning configuration, and
        :class:`ProcessesError` where there are other processes and one can't read its part: they all start again then.
        """
        for step in reversed(self.steps()):
            try:
                facts = self._read(step, facts=ocp.args.JsonRestore()).facts
                self._require_same(step, facts["fingerprint"])
                places = ocp.checkpoint_utils.construct_restore_args(like)
                items = ocp.args.PyTreeRestore(item=like, restore_args=places)
                state = jax.block_until_ready(self._read(step, state=items).state)
            except ConfigError:
                raise
            except Exception as error:  # Orbax and TensorStore raise many kinds for a file that is cut or gone
                if of_another(error):
                    raise
                summary = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
                damaged = f"checkpoint {step} is damaged and was moved to {self._move_aside(step)}"
                if jax.process_count() > 1:
                    # The others may have read their parts of it, and be waiting for this one.
                    raise ProcessesError(
                        f"{damaged}: {summary}. The same command on every node goes on from the one before it"
                    ) from error
                self.console.print(f"[yellow]{damaged}[/]: {summary}", highlight=False)
                continue
            return step, state, facts
        return None

    def close(self) -> None:
        """Wait for what is being written. Raises as :meth:`settled`."""
        try:
            self.settled(wait=True)
        finally:
            self.saver.close()

    def _read(self, step: int, **items: Any) -> Any:
        return self.saver.restore(self.folder / str(step), args=ocp.args.Composite(**items))

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
        shelf = self.folder.with_name(self.folder.name + "-unreadable")
        shelf.mkdir(exist_ok=True)
        aside = shelf / f"{step}-{len(list(shelf.iterdir()))}"
        with suppress(FileNotFoundError):  # Another process has found the damage, too.
            (self.folder / str(step)).rename(aside)
        return aside

    def _forget(self) -> None:
        """Remove what a failed save has left."""
        step, self.writing = self.writing, None
        if first() and step is not None:
            self._sweep(f"{step}.orbax-checkpoint-tmp*")

    def _prune(self) -> None:
        if not first():
            return
        steps = self.steps()
        kept = self.retention.kept(steps, self.scores())
        for step in steps:
            if step not in kept:
                # Half a checkpoint never goes by a checkpoint's name.
                aside = self.folder / f".{step}.old"
                (self.folder / str(step)).rename(aside)
                shutil.rmtree(aside)

    def _sweep(self, pattern: str) -> None:
        for leavings in self.folder.glob(pattern):
            shutil.rmtree(leavings, ignore_errors=True)


def _states(memory_gb: float | None) -> ocp.PyTreeCheckpointHandler:
    if memory_gb is None:
        return ocp.PyTreeCheckpointHandler()
    # Orbax limits what has no priority, and nothing else.
    return ocp.PyTreeCheckpointHandler(
        save_device_host_concurrent_gb=memory_gb, is_prioritized_key_fn=lambda path: False
    )
