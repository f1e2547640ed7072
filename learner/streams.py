"""A logged batch to the token streams of an update.

Invariant: a batch is trained on only if it passes here, whether it comes from a live run or from exported files:
its trained groups are whole, each of their tokens was sampled by a policy version of at most ``max_staleness``
updates ago (0: by the step's own), and its arrays agree with each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from learner.errors import BatchError
from learner.grpo import group_advantages
from learner.packing import Stream
from protocol.records import Batch, Trajectory, UnpackedTokens


def streams(batch: Batch, trajectories: Sequence[Trajectory], step: int, max_staleness: int = 0) -> list[Stream]:
    """The token streams to learn from, each with its trajectory's advantage on every sampled token.

    In order of trajectory id, whatever order they came in. Raises :class:`BatchError` unless every trained group
    is whole, each token's policy version is ``step`` or at most ``max_staleness`` less, and its token arrays agree.
    """
    if batch.step != step or not 0 <= step - batch.policy_version <= max_staleness:
        raise BatchError(
            f"step {step} got the batch of step {batch.step}, rolled out with policy version {batch.policy_version}; "
            + _bound(max_staleness)
        )
    known = {t.id: t for t in trajectories}
    members: list[Trajectory] = []
    for group in batch.groups:
        if group.bucket != "trained":
            continue
        if len(group.trajectories) != batch.group_size or len(set(group.trajectories)) != batch.group_size:
            raise BatchError(
                f"group {group.group} of step {step} is not {batch.group_size} different samples (rule 11)"
            )
        for id, reward in zip(group.trajectories, group.rewards, strict=True):
            if id not in known:
                raise BatchError(f"trajectory {id} of step {step}'s batch is not in the log")
            if known[id].reward != reward:
                raise BatchError(f"trajectory {id} has reward {known[id].reward} and the batch says {reward}")
            members.append(known[id])
    members.sort(key=lambda t: t.id)
    # A group carried over from an earlier step may bear the number of one of this step.
    advantages = group_advantages([t.reward for t in members], [(t.id.step, t.id.group) for t in members])
    return [_stream(t, advantage, step, max_staleness) for t, advantage in zip(members, advantages, strict=True)]


def staleness(trajectories: Sequence[Trajectory], step: int) -> tuple[float, float]:
    """(mean, maximum) over sampled tokens of the updates made since each was sampled, of an update's trajectories."""
    ages = [step - t.tokens.unpack().versions for t in trajectories if t.tokens is not None]
    ages = np.concatenate(ages) if ages else np.zeros(0)
    return (float(ages.mean()), float(ages.max())) if len(ages) else (0.0, 0.0)


def _bound(max_staleness: int) -> str:
    return f"rollout.max_staleness is {max_staleness}"


def _stream(trajectory: Trajectory, advantage: np.float32, step: int, max_staleness: int) -> Stream:
    name = f"trajectory {trajectory.id}"
    if trajectory.tokens is None:
        raise BatchError(f"{name} carries no token arrays")
    try:
        tokens = trajectory.tokens.unpack()
    except ValueError as error:
        raise BatchError(f"{name}: {error}") from error
    sampled = np.flatnonzero(tokens.mask)
    if len(sampled) == 0 or sampled[0] == 0:
        raise BatchError(f"{name} has no sampled token after a prompt")
    _check_versions(name, trajectory, tokens, step, max_staleness)
    if not np.isfinite(tokens.logprobs).all():
        raise BatchError(f"{name} has log-probabilities that are not finite")
    # Nothing is learnt from what follows the last sampled token, such as a tool result that ended the episode.
    ids = tokens.ids[: sampled[-1] + 1]
    return Stream(ids, sampled, np.full(len(sampled), advantage, np.float32), tokens.logprobs)


def _check_versions(name: str, trajectory: Trajectory, tokens: UnpackedTokens, step: int, max_staleness: int) -> None:
    versions = tuple(np.unique(tokens.versions).tolist())
    if versions != trajectory.versions:
        raise BatchError(
            f"{name} is of policy version {', '.join(map(str, trajectory.versions))} with tokens of {list(versions)}"
        )
    if not step - max_staleness <= versions[0] <= versions[-1] <= step:
        raise BatchError(
            f"{name} has tokens of policy version {', '.join(map(str, versions))} and step {step} trains on versions "
            f"{step - max_staleness} to {step}: {_bound(max_staleness)}"
        )
