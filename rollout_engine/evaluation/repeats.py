"""Run every (task, attempt) key once, whatever breaks on the way.

Invariant: each key that isn't done yet yields exactly one row. A system error says nothing about the
policy, so that one attempt runs again, up to a bound, and only then becomes an error row. An outage
makes no error rows: the campaign pauses until the service is back. Keys are admitted task by task,
never in finish order, with at most ``concurrency`` episodes in flight.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence

import trio

from protocol.config import Retries
from protocol.records import Trajectory
from rollout_engine.environments.task import Task
from rollout_engine.errors import EpisodeSystemError
from rollout_engine.evaluation.attempts import AttemptError, AttemptRow, Key, PolicyStamp
from rollout_engine.evaluation.model_usage import usage_of
from rollout_engine.gate import Gate
from rollout_engine.retry import RetryBudget

EpisodeRunner = Callable[[Task, int, int], Awaitable[Trajectory]]
"""``await runner(task, attempt, retry)``: a graded trajectory, or an :class:`EpisodeSystemError`."""


async def run_attempts(
    tasks: Sequence[Task],
    attempts: int,
    runner: EpisodeRunner,
    concurrency: int,
    done: Collection[Key],
    retries: Retries,
    on_result: Callable[[AttemptRow], None],
    *,
    gate: Gate,
    policy: PolicyStamp,
    on_trajectory: Callable[[Trajectory, Key], None] | None = None,
) -> None:
    """Run ``attempts`` attempts of each task, less those ``done``, and report each row as it finishes.

    ``retries``        how often and how soon one attempt may run again, by kind of system error.
    ``gate``           what every attempt passes: closed during an outage.
    ``policy``         stamped on every row, with the version that the episode reports.
    ``on_trajectory``  called before ``on_result``, so that a row on disk always has its transcript.

    Raises :class:`RunStopped` for an outage that lasts too long. Anything else than an :class:`EpisodeSystemError` is a
    defect and ends the campaign.
    """
    keys = _missing(tasks, attempts, done)

    async def worker() -> None:
        # The workers share one iterator, so admission order is its order.
        for task, attempt in keys:
            result = await _attempt(runner, task, attempt, retries, gate)
            if isinstance(result, Trajectory):
                if on_trajectory is not None:
                    on_trajectory(result, (task.id, attempt))
                on_result(_graded(task, attempt, policy, result))
            else:
                on_result(_failed(task, attempt, policy, result))

    async with trio.open_nursery() as nursery:
        for _ in range(concurrency):
            nursery.start_soon(worker)


def missing_keys(tasks: Sequence[Task], attempts: int, done: Collection[Key]) -> list[Key]:
    """Keys still to run, in admission order."""
    return [(task.id, attempt) for task, attempt in _missing(tasks, attempts, done)]


def _missing(tasks: Sequence[Task], attempts: int, done: Collection[Key]) -> Iterator[tuple[Task, int]]:
    return ((task, attempt) for task in tasks for attempt in range(attempts) if (task.id, attempt) not in done)


async def _attempt(
    runner: EpisodeRunner, task: Task, attempt: int, retries: Retries, gate: Gate
) -> Trajectory | EpisodeSystemError:
    budget, retry = RetryBudget(retries), 0
    while True:
        try:
            async with gate.admit(task.id, first=not retry) as admission:
                return await runner(task, attempt, retry)
        except EpisodeSystemError as error:
            wait = budget.after(error, admission.excused)
            if wait is None:
                return error
        await trio.sleep(wait)
        retry += 1


def _graded(task: Task, attempt: int, policy: PolicyStamp, trajectory: Trajectory) -> AttemptRow:
    return AttemptRow(
        task=task.id,
        domain=task.domain,
        family=task.family,
        attempt=attempt,
        policy=PolicyStamp(policy.label, trajectory.policy_version, policy.digest),
        reward=trajectory.reward,
        finish=trajectory.finish,
        sampled_tokens=trajectory.sampled_tokens,
        prompt_tokens=trajectory.prompt_tokens,
        seconds=trajectory.timings.get("total", 0.0),
        seed=trajectory.seed,
        reasons=trajectory.verdict.reasons,
        ranking=trajectory.ranking,
        models=usage_of(trajectory.model_calls),
    )


def _failed(task: Task, attempt: int, policy: PolicyStamp, error: EpisodeSystemError) -> AttemptRow:
    return AttemptRow(
        task=task.id,
        domain=task.domain,
        family=task.family,
        attempt=attempt,
        policy=policy,
        seed=task.seed,
        error=AttemptError(error.kind, str(error)),
    )
