"""A logged batch to the token streams of an update.

Invariant: a batch is trained on only if it passes here, whether it comes from a live run or from exported files:
its trained groups are whole, each of their tokens was sampled by a policy version of at most ``max_staleness``
updates ago (0: by the step's own), and its arrays agree with each other and with the manifest. The manifest is checked
by every process, a trajectory by those whose rows it lies in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from learner.errors import BatchError
from learner.grpo import group_advantages
from learner.packing import Stream
from protocol.records import Batch, Trajectory, TrajectoryId, UnpackedTokens


class Member(NamedTuple):
    """A trajectory of an update, as the manifest has it."""

    id: TrajectoryId
    reward: float
    advantage: np.float32
    tokens: int | None
    """Length of its stream up to the last sampled token; None where the manifest doesn't say."""
    sampled: int | None
    """How many of them were sampled."""


def members(batch: Batch, step: int, max_staleness: int = 0) -> list[Member]:
    """What ``step`` learns from, by the manifest alone, in order of trajectory id.

    Raises :class:`BatchError` unless it is the step's batch and every trained group is whole.
    """
    if batch.step != step or not 0 <= step - batch.policy_version <= max_staleness:
        raise BatchError(
            f"step {step} got the batch of step {batch.step}, rolled out with policy version {batch.policy_version}; "
            + _bound(max_staleness)
        )
    found: list[tuple[TrajectoryId, float, int | None, int | None]] = []
    for group in batch.groups:
        if group.bucket != "trained":
            continue
        if len(group.trajectories) != batch.group_size or len(set(group.trajectories)) != batch.group_size:
            raise BatchError(
                f"group {group.group} of step {step} is not {batch.group_size} different samples (rule 11)"
            )
        unsaid = (None,) * batch.group_size
        tokens, sampled = group.tokens or unsaid, group.sampled or unsaid
        found += zip(group.trajectories, group.rewards, tokens, sampled, strict=True)
    found.sort(key=lambda member: member[0])
    # A group carried over from an earlier step may bear the number of one of this step.
    groups = [(id.step, id.group) for id, *_ in found]
    advantages = group_advantages([reward for _, reward, *_ in found], groups)
    return [
        Member(id, reward, advantage, tokens, sampled)
        for (id, reward, tokens, sampled), advantage in zip(found, advantages, strict=True)
    ]


def streams(
    batch: Batch, trajectories: Sequence[Trajectory], step: int, max_staleness: int = 0, support: int = 0
) -> list[Stream]:
    """The token streams to learn from, each with its trajectory's advantage on every sampled token.

    In order of trajectory id, whatever order they came in. Raises :class:`BatchError` as :func:`members` and
    :func:`stream` do, and for a trajectory that isn't there.
    """
    known = {t.id: t for t in trajectories}
    found = members(batch, step, max_staleness)
    for member in found:
        if member.id not in known:
            raise BatchError(f"trajectory {member.id} of step {step}'s batch is not in the log")
    return [stream(member, known[member.id], step, max_staleness, support) for member in found]


def staleness(trajectories: Sequence[Trajectory], step: int) -> tuple[float, float, float]:
    """(sum, number, maximum) over sampled tokens of the updates made since each was sampled."""
    ages = [step - t.tokens.unpack().versions for t in trajectories if t.tokens is not None]
    ages = np.concatenate(ages) if ages else np.zeros(0)
    return float(ages.sum()), float(len(ages)), float(ages.max(initial=0))


def _bound(max_staleness: int) -> str:
    return f"rollout.max_staleness is {max_staleness}"


def stream(member: Member, trajectory: Trajectory, step: int, max_staleness: int = 0, support: int = 0) -> Stream:
    """The token stream of one trajectory, up to its last sampled token.

    ``support``: how many ids a token was sampled from at most; 0: the whole vocabulary. Raises :class:`BatchError`
    unless it is what the manifest says, each token's policy version is ``step`` or at most ``max_staleness`` less, and
    its token arrays agree with each other and with ``support``.
    """
    name = f"trajectory {trajectory.id}"
    if trajectory.reward != member.reward:
        raise BatchError(f"{name} has reward {trajectory.reward} and the batch says {member.reward}")
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
    if member.tokens not in (None, len(ids)) or member.sampled not in (None, len(sampled)):
        raise BatchError(
            f"{name} has {len(ids)} tokens, {len(sampled)} of them sampled, and the batch says {member.tokens} and "
            f"{member.sampled}"
        )
    weights = np.full(len(sampled), member.advantage, np.float32)
    return Stream(ids, sampled, weights, tokens.logprobs, _support(name, tokens, support))


def _support(name: str, tokens: UnpackedTokens, width: int) -> np.ndarray | None:
    """int32 [S, width], -1 where fewer ids could be sampled; None where all of the vocabulary could."""
    sizes = tokens.support_sizes
    if not width and not len(sizes):
        return None
    if not len(sizes):
        raise BatchError(
            f"{name} doesn't record what its tokens were sampled from, and rollout.sampling.top_k is {width}: its "
            "log-probabilities would be compared with those of another distribution. It is from before that was "
            "recorded, or from another configuration; learn from it with rollout.sampling.top_k -1 and top_p 1, as was "
            "done then"
        )
    if sizes.max() > width:
        raise BatchError(f"{name} has tokens sampled from {sizes.max()} ids, and rollout.sampling.top_k is {width}")
    place = np.repeat(np.arange(len(sizes)), sizes)
    own = tokens.support == tokens.ids[np.flatnonzero(tokens.mask)][place]
    if not np.bincount(place[own], minlength=len(sizes)).all():
        raise BatchError(f"{name} has a token that isn't among those that it was sampled from")
    out = np.full((len(sizes), width), -1, np.int32)
    out[np.arange(width) < sizes[:, None]] = tokens.support
    return out


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
