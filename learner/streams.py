"""A logged batch to the token streams of an update.

Invariant: a batch is trained on only if it passes here, whether it comes from a live run or from exported files:
its trained groups are whole, of one policy version, the one of the step, and its arrays agree with each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from learner.errors import BatchError
from learner.grpo import group_advantages
from learner.packing import Stream
from protocol.records import Batch, Trajectory


def streams(batch: Batch, trajectories: Sequence[Trajectory], step: int) -> list[Stream]:
    """The token streams to learn from, each with its trajectory's advantage on every sampled token.

    In order of trajectory id, whatever order they came in. Raises :class:`BatchError` unless every trained group
    is whole, of one policy version, the one of ``step``, and its token arrays agree.
    """
    if batch.step != step or batch.policy_version != step:
        raise BatchError(
            f"step {step} got the batch of step {batch.step}, rolled out with policy version {batch.policy_version}"
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
    advantages = group_advantages([t.reward for t in members], [t.id.group for t in members])
    return [_stream(t, advantage, step) for t, advantage in zip(members, advantages, strict=True)]


def _stream(trajectory: Trajectory, advantage: np.float32, step: int) -> Stream:
    name = f"trajectory {trajectory.id}"
    if trajectory.tokens is None:
        raise BatchError(f"{name} carries no token arrays")
    try:
        tokens = trajectory.tokens.unpack()
    except ValueError as error:
        raise BatchError(f"{name}: {error}") from error
    strange = set(tokens.versions.tolist()) - {step}
    if trajectory.policy_version != step or strange:
        raise BatchError(
            f"{name} is of policy version {trajectory.policy_version} with tokens of {sorted(strange) or step}; "
            f"step {step} trains on version {step} only"
        )
    sampled = np.flatnonzero(tokens.mask)
    if len(sampled) == 0 or sampled[0] == 0:
        raise BatchError(f"{name} has no sampled token after a prompt")
    if not np.isfinite(tokens.logprobs).all():
        raise BatchError(f"{name} has log-probabilities that are not finite")
    # Nothing is learnt from what follows the last sampled token, such as a tool result that ended the episode.
    ids = tokens.ids[: sampled[-1] + 1]
    return Stream(ids, sampled, np.full(len(sampled), advantage, np.float32), tokens.logprobs)
