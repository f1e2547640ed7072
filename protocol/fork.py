"""A new run that begins where another one was after some steps.

Invariant: the fork's log begins with its parent's steps, the same trajectories and manifests under ids of the new run,
so a learner that starts on it reaches its parent's weights bit for bit, from a checkpoint of the parent's or by
replaying that log, and only then goes its own way. The origin is logged first and the last copied manifest last: a
fork that was cut short is known as such, nobody works on it, and forking again completes it.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec

from protocol.bus import Bus, connect
from protocol.config import Config
from protocol.errors import ForkRefused
from protocol.records import Batch, Origin, Stretch, Trajectory, TrajectoryId
from protocol.subjects import check_run

FILES = ("pool.json", "probe.jsonl", "metrics.jsonl")
"""What a run's folder holds beside its model and its checkpoints that the next steps depend on."""


@dataclass(frozen=True)
class Fork:
    """What was made."""

    origin: Origin
    checkpoint: int | None
    """Step of the parent's checkpoint that the fork starts from; None: from the base weights."""


async def fork(config: Config, step: int, run: str) -> Fork:
    """Make ``run`` of the first ``step`` steps of the run of ``config``, on the same server and beside its folder.

    Forking again completes a fork that was cut short, and changes nothing on a whole one. Raises
    :class:`ForkRefused` naming what is in the way.
    """
    check_run(run)
    if run == config.run:
        raise ForkRefused(f"a fork of run {run} needs a name of its own: choose another --as")
    if step < 0:
        raise ForkRefused(f"run {config.run} can be forked at step 0 or later, not at {step}")
    async with connect(config.nats, config.run, create=False) as parent:
        batches = await _manifests(parent, step)
        horizon = await parent.horizon()
        checkpoint = _checkpoint(config, batches, horizon)
        origin = Origin(run, config.run, step, _history(config, await parent.origin(), step))
        async with connect(config.nats, run, forking=True) as child:
            await _claim(child, origin, Path(config.folder) / run / "checkpoints")
            # Before the log is whole, so that a learner can't start without them.
            _take_folder(config, run, checkpoint)
            await _copy(parent, child, batches, horizon)
    return Fork(origin, checkpoint)


async def _manifests(parent: Bus, step: int) -> list[Batch]:
    batches: list[Batch] = []
    while len(batches) < step:
        batch = await parent.batch(len(batches))
        if batch is None:
            raise ForkRefused(
                f"run {parent.run} has the batches of {len(batches)} steps, so it can be forked at steps 0 to "
                f"{len(batches)}, not at {step}"
            )
        batches.append(batch)
    return batches


def _checkpoint(config: Config, batches: list[Batch], horizon: int) -> int | None:
    """The newest checkpoint of the parent's that the fork can start from. Raises :class:`ForkRefused` where the log
    doesn't reach back far enough to replay what lies between."""
    folder = config.path / "checkpoints"
    found = [int(path.name) for path in folder.iterdir() if path.name.isdecimal()] if folder.is_dir() else []
    newest = max((step for step in found if step <= len(batches)), default=None)
    if horizon:
        replayed = batches[newest or 0 :]
        groups = [group for batch in replayed for group in batch.groups if group.bucket == "trained"]
        trained = [id for group in groups for id in group.trajectories]
        if any(id.step < horizon for id in trained):
            usable = sorted(step for step in found if step >= horizon)
            raise ForkRefused(
                f"run {config.run} can't be forked at step {len(batches)}: the trajectories of steps before {horizon} "
                f"were removed, as nats.retain: checkpoint says, and {folder} holds no checkpoint from which the rest "
                f"can be replayed. Fork at a later step: {usable or f'{horizon} or later, once there is a checkpoint'}"
            )
    return newest


def _history(config: Config, before: Origin | None, step: int) -> tuple[Stretch, ...]:
    """What the first ``step`` steps were learnt under."""
    inherited = () if before is None else before.history
    kept = [Stretch(min(past.until, step), past.config) for past in inherited]
    history = [past for number, past in enumerate(kept) if not number or kept[number - 1].until < past.until]
    if not history or history[-1].until < step:
        history.append(Stretch(step, msgspec.to_builtins(config)))
    return tuple(past for past in history if past.until)


async def _claim(child: Bus, origin: Origin, checkpoints: Path) -> None:
    """Log the origin, unless this very fork was begun before. ``checkpoints``: the folder of the fork's own."""
    before = await child.origin()
    if before is None:
        if await child.policy() is not None or await child.steps() or await child.batch(0) is not None:
            raise ForkRefused(f"run {origin.run} exists already and is no fork: choose another --as")
        if checkpoints.is_dir() and any(path.name.isdecimal() for path in checkpoints.iterdir()):
            # Of a run of that name whose log is gone: a learner would take them for the fork's.
            raise ForkRefused(
                f"{checkpoints} holds checkpoints of an earlier run {origin.run}: move that run's folder away, or "
                "choose another --as"
            )
        await child.publish_origin(origin)
    elif (before.parent, before.step) != (origin.parent, origin.step):
        raise ForkRefused(
            f"run {origin.run} exists already, a fork of run {before.parent} at step {before.step}: choose another --as"
        )


def _take_folder(config: Config, run: str, checkpoint: int | None) -> None:
    """Give the fork's folder its parent's model (a link), task pool and checkpoint."""
    folder = Path(config.folder) / run
    folder.mkdir(parents=True, exist_ok=True)
    model = Path(config.model.folder)
    place = folder / model
    if config.model.folder and not model.is_absolute() and not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(os.path.relpath(config.path / model, place.parent))
    for name in FILES:
        if (config.path / name).exists() and not (folder / name).exists():
            _appear(config.path / name, folder / name)
    if checkpoint is not None:
        place = folder / "checkpoints" / str(checkpoint)
        place.parent.mkdir(exist_ok=True)
        if not place.exists():
            _appear(config.path / "checkpoints" / str(checkpoint), place)


def _appear(source: Path, place: Path) -> None:
    """Copy a file or a folder, whole or not at all."""
    beside = place.with_name(f".{place.name}.part")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        if source.is_dir():
            shutil.copytree(source, beside)
        else:
            shutil.copyfile(source, beside)
    except (OSError, shutil.Error) as error:
        raise ForkRefused(
            f"{source} can't be copied to {place.parent} ({error}): make room or stop the parent's learner, then fork "
            "again"
        ) from error
    beside.rename(place)


async def _copy(parent: Bus, child: Bus, batches: list[Batch], horizon: int) -> None:
    if horizon:
        await child.publish_horizon(horizon)
    with_trajectories = set(await parent.steps())
    for batch in batches:
        if batch.step >= horizon and batch.step in with_trajectories and await child.batch(batch.step) is None:
            for trajectory in await parent.trajectories(batch.step):
                await child.publish_trajectory(_renamed(trajectory, child.run))
        await child.publish_batch(_of_run(batch, child.run))


def _renamed(trajectory: Trajectory, run: str) -> Trajectory:
    return msgspec.structs.replace(trajectory, id=_id(trajectory.id, run))


def _of_run(batch: Batch, run: str) -> Batch:
    groups = tuple(
        msgspec.structs.replace(group, trajectories=tuple(_id(id, run) for id in group.trajectories))
        for group in batch.groups
    )
    return msgspec.structs.replace(batch, run=run, groups=groups)


def _id(id: TrajectoryId, run: str) -> TrajectoryId:
    return msgspec.structs.replace(id, run=run)
