"""Small campaigns, batches and tasks, built by hand for the tests beside this file and in curation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from protocol.records import (
    Batch,
    GroupRecord,
    Ledger,
    Message,
    RowChange,
    ToolCall,
    Trajectory,
    TrajectoryId,
    Verdict,
)
from rollout_engine.environments.task import Task
from rollout_engine.evaluation.attempts import AttemptError, AttemptRow, PolicyStamp


def task(id: str, split: str = "train") -> Task:
    domain, family, *_ = id.split("/")
    return Task(id, domain, family, split, 0, {}, "Hello", {}, ())


def row(
    id: str = "travel/refund/train/0",
    attempt: int = 0,
    reward: float | None = 1.0,
    label: str = "base",
    sampled: int = 10,
    prompt: int = 90,
    error: str | None = None,
) -> AttemptRow:
    domain, family, *_ = id.split("/")
    return AttemptRow(
        task=id,
        domain=domain,
        family=family,
        attempt=attempt,
        policy=PolicyStamp(label, 0),
        reward=None if error else reward,
        finish=None if error else "done",
        sampled_tokens=sampled,
        prompt_tokens=prompt,
        error=AttemptError(error, "gone") if error else None,
    )


def campaign(passes: Mapping[str, int], attempts: int, label: str = "base") -> list[AttemptRow]:
    """``attempts`` rows a task, the first ``passes[task]`` of which pass; 100 tokens each."""
    return [
        row(id, attempt, float(attempt < count), label) for id, count in passes.items() for attempt in range(attempts)
    ]


def trajectory(
    id: str = "travel/refund/train/0", attempt: int = 0, reward: float = 1.0, version: int = 0
) -> Trajectory:
    domain, family, *_ = id.split("/")
    change = RowChange("bookings", ("BK1",), "wrong", {"status": "refunded"}, {"status": "cancelled"})
    return Trajectory(
        id=TrajectoryId("r", 0, 0, 0, attempt),
        task=id,
        domain=domain,
        family=family,
        policy_version=version,
        messages=(
            Message("system", "policy text"),
            Message("user", "Please refund <b>BK1</b>"),
            Message("assistant", "", reasoning="look", calls=(ToolCall("get_booking", {"id": "BK1"}),)),
            Message("tool", "no such booking", name="get_booking", is_error=True),
            Message("assistant", "Done."),
        ),
        verdict=Verdict(reward, () if reward == 1.0 else ("bookings BK1: wrong status",), (change,) * (reward < 1.0)),
        finish="done",
        seed=7,
        sampled_tokens=12,
        prompt_tokens=300,
        timings={"total": 1.5},
    )


def batch(step: int, rewards: Sequence[Sequence[float]]) -> Batch:
    """One group a list of rewards; equal rewards are zero-variance."""
    groups, trained, flat = [], 0, 0
    for number, group in enumerate(rewards):
        equal = len(set(group)) == 1
        trained, flat = trained + len(group) * (not equal), flat + len(group) * equal
        ids = tuple(TrajectoryId("r", step, number, sample) for sample in range(len(group)))
        groups.append(GroupRecord(number, "t", ids, tuple(group), "zero_variance" if equal else "trained"))
    ledger = Ledger(trained + flat + 1, trained, flat, system_error={"actor": 1})
    return Batch("r", step, step, len(rewards[0]), tuple(groups), ledger, seconds=2.0)
