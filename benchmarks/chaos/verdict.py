"""What is left of a run when the storm is over, counted anew from the log alone.

Invariant: nothing here trusts a manifest. Buckets are counted from the trajectories and the started attempts, twins
from the server's own count of messages by subject, the weights from a replay that nobody disturbed.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import nats
import numpy as np
import trio
from safetensors.numpy import load_file

from benchmarks.chaos.verbs import ROOT
from benchmarks.chaos.witness import Witness, digest
from protocol import log, subjects
from protocol.bus import Bus, connect
from protocol.config import Config
from protocol.records import Attempts, Batch, Trajectory, TrajectoryId


@dataclass
class Verdict:
    trajectories: int = 0
    trained: int = 0
    lost: int = 0
    doubled: int = 0
    trained_twice: int = 0
    wrong_ledgers: int = 0
    stale: int = 0
    """Tokens on the log that were not sampled by the step's own version."""
    updates: int = 0
    """Steps that changed the weights."""
    same_weights: bool = False
    faults: list[str] = field(default_factory=list)


async def judge(config: Config, witness: Witness, folder: Path) -> tuple[Verdict, list[Path]]:
    """Everything but the weights; and the exported log, under ``folder``."""
    verdict = Verdict()
    async with connect(config.nats, config.run, create=False) as bus:
        await _log(config, bus, witness, verdict)
        paths = await log.export(bus, folder)
    counts = await trio.to_thread.run_sync(asyncio.run, _messages_by_subject(config))
    verdict.doubled = sum(count - 1 for count in counts.values())
    verdict.faults += [f"{subject} holds {count} messages" for subject, count in counts.items() if count > 1]
    return verdict, paths


async def _log(config: Config, bus: Bus, witness: Witness, verdict: Verdict) -> None:
    steps, staleness = range(config.learner.steps), config.rollout.max_staleness
    batches: dict[int, Batch] = {}
    held: dict[TrajectoryId, Trajectory] = {}
    for step in steps:
        batch = await bus.batch(step)
        if batch is None:
            verdict.faults.append(f"step {step} has no manifest")
            continue
        batches[step] = batch
        own = {trajectory.id: trajectory for trajectory in await bus.trajectories(step)}
        held |= own
        faults = [*_ledger_faults(batch, own, await bus.attempts(step))]
        verdict.wrong_ledgers += bool(faults)
        verdict.faults += [f"step {step}: {fault}" for fault in faults]
    for step, batch in batches.items():
        verdict.faults += [f"step {step}: {fault}" for fault in _group_faults(batch, held, staleness)]
    trained = [id for b in batches.values() for g in b.groups if g.bucket == "trained" for id in g.trajectories]
    verdict.trajectories, verdict.trained = len(held), len(trained)
    verdict.stale = sum(int((t.tokens.unpack().versions != t.id.step).sum()) for t in held.values())
    twice = {id for id, count in Counter(trained).items() if count > 1}
    verdict.trained_twice = len(twice)
    verdict.faults += [f"{id} is trained twice" for id in twice]

    gone = [id for id, seen in witness.trajectories.items() if id not in held]
    changed = [step for step, seen in witness.batches.items() if step not in batches or digest(batches[step]) != seen]
    policies = {policy.version: policy.sha256 for policy in await bus.policies()}
    verdict.lost = len(gone) + len(changed)
    verdict.faults += [f"{id} was on the log and is gone" for id in gone]
    verdict.faults += [f"the manifest of step {step} was another one before" for step in changed]
    if list(policies) != list(range(config.learner.steps + 1)):
        verdict.faults.append(f"policy versions on the log: {list(policies)}")
    verdict.faults += [
        f"version {version} was announced with other weights before"
        for version, seen in witness.policies.items()
        if policies.get(version) != seen
    ]


def _ledger_faults(batch: Batch, own: dict[TrajectoryId, Trajectory], records: list[Attempts]) -> Iterator[str]:
    """Differences between a manifest's ledger and what trajectories and started attempts say."""
    bucket = {id: group.bucket for group in batch.groups for id in group.trajectories}
    counts = Counter(bucket.get(id, "surplus") for id in own)  # of a group that isn't whole: left over
    counts["trained"] += sum(id.step != batch.step for id in bucket)
    places = {(id.group, id.sample, id.attempt) for id in own}
    failed = {(g, s, a): kind for record in records for g, s, a, kind in record.failed}
    started = places | {tuple(attempt) for record in records for attempt in record.started}
    ended_otherwise = started - places
    counts["cancelled"] = sum(place not in failed for place in ended_otherwise)
    errors = dict(sorted(Counter(failed[place] for place in ended_otherwise if place in failed).items()))
    ledger = batch.ledger
    for name in ("trained", "zero_variance", "surplus", "cancelled"):
        if getattr(ledger, name) != counts[name]:
            yield f"the ledger says {getattr(ledger, name)} {name}, the log {counts[name]}"
    if ledger.system_error != errors or ledger.started != len(started):
        yield f"the ledger says {ledger.started} started, {ledger.system_error}; the log {len(started)}, {errors}"
    try:
        ledger.check()
    except ValueError as error:
        yield str(error)


def _group_faults(batch: Batch, held: dict[TrajectoryId, Trajectory], staleness: int) -> Iterator[str]:
    """Groups are whole, of one task, with the rewards and versions that their trajectories have."""
    for group in batch.groups:
        missing = [id for id in group.trajectories if id not in held]
        if missing:
            yield f"{missing[0]} is in the manifest, not on the log"
            continue
        members = [held[id] for id in group.trajectories]
        if len({(id.step, id.group, id.sample) for id in group.trajectories}) != batch.group_size:
            yield f"group {group.group} is not {batch.group_size} samples"
        if {member.task for member in members} != {group.task}:
            yield f"group {group.group} mixes tasks"
        if [member.reward for member in members] != list(group.rewards):
            yield f"group {group.group}: the manifest's rewards aren't those of its trajectories"
        if group.bucket == "trained" and len(set(group.rewards)) == 1:
            yield f"group {group.group} is trained on although its rewards are equal"
        versions = np.concatenate([member.tokens.unpack().versions for member in members])
        if versions.min() < batch.step - staleness or versions.max() > batch.step:
            yield f"group {group.group} was sampled by versions {versions.min()} to {versions.max()}"


async def _messages_by_subject(config: Config) -> dict[str, int]:
    client = await nats.connect(config.nats.url)
    try:
        stream, found = client.jetstream(), {}
        for subject in (subjects.trajectories(config.run), subjects.batch(config.run, "*")):
            info = await stream.stream_info(subjects.stream(config.run), subjects_filter=subject)
            found |= info.state.subjects or {}
        return found
    finally:
        await client.close()


async def check_fidelity(file: Path, verdict: Verdict) -> None:
    """Every stream is the template's, and every token was sampled by the weights that it is labelled with: the learner
    computes its log-probability anew."""
    verb = [str(ROOT / "bin/fidelity"), "--config", str(file)]
    done = await trio.run_process(
        verb, stdin=subprocess.DEVNULL, capture_stdout=True, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode:
        verdict.faults.append(f"bin/fidelity: {done.stdout.decode()[-1000:]}")


async def compare_weights(config: Config, file: Path, paths: list[Path], folder: Path, verdict: Verdict) -> None:
    """Replay the exported log with a learner that nobody disturbs, and compare its final weights bit for bit."""
    (folder / config.run).mkdir(parents=True)
    os.symlink(config.path / "base", folder / config.run / "base")
    command = [str(ROOT / "bin/learner"), "--config", str(file), "--set", f"folder={folder}", "--replay"]
    with (folder / "replay.log").open("wb") as output:
        done = await trio.run_process(
            [*command, *map(str, paths)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode:
        verdict.faults.append(f"the replay failed:\n{(folder / 'replay.log').read_text()[-2000:]}")
        return
    live, replayed = (_final(run / "weights", config.learner.steps) for run in (config.path, folder / config.run))
    base = load_file(config.path / "base" / "model.safetensors")
    different = [name for name, tensor in live.items() if tensor.tobytes() != replayed[name].tobytes()]
    verdict.same_weights = not different and live.keys() == replayed.keys()
    if not verdict.same_weights:
        verdict.faults.append(f"the weights of a replay differ: {different[:3]}")
    if all(np.array_equal(live[name], base[name]) for name in live):
        verdict.faults.append("nothing was learnt, so nothing was compared")


def _final(weights: Path, version: int) -> dict[str, np.ndarray]:
    [folder] = [found for found in weights.glob("v*") if int(found.name.lstrip("v")) == version]
    return load_file(folder / "model.safetensors")
