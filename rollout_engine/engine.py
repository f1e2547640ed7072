"""The engine: steps, from an announced policy version to a published manifest.

At ``rollout.max_staleness`` 0 the steps are synchronous: step s starts when version s is served. At k it starts when
version s - k is, so that the learner's updates and the next steps' rollouts overlap.

Invariants: a trajectory is on the log before its group counts it (the log is the truth, rule 12), so an
engine restarted in mid-step finds every complete sample there and runs only the missing ones. A step is
over when its manifest is on the log; a step whose manifest is there is never run again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import httpx
import trio

from protocol.bus import Bus
from protocol.config import Config
from protocol.records import Batch, Trajectory, TrajectoryId
from rollout_engine.actors.policy import Policy, Sampling
from rollout_engine.actors.pool import ActorPool
from rollout_engine.batch import BatchState
from rollout_engine.environments.native import NativeEnvironment
from rollout_engine.environments.task import Task
from rollout_engine.episode import EpisodeSetup, run_episode
from rollout_engine.errors import ConfigurationError
from rollout_engine.group import GroupPlan, GroupResult, run_group
from rollout_engine.schedule import task_for
from rollout_engine.tokens.template import ChatTemplate
from rollout_engine.users import make_user


class StepProgress(Protocol):
    """What a terminal wants to know of a step while it runs."""

    def step(self, step: int) -> None: ...
    def episode(self, trajectory: Trajectory) -> None: ...
    def group(self, result: GroupResult, state: BatchState) -> None: ...
    def batch(self, batch: Batch) -> None: ...


@dataclass
class Engine:
    """Runs the steps of one run against one policy and one log."""

    config: Config
    pool: Sequence[Task]
    setup: EpisodeSetup
    bus: Bus
    progress: StepProgress
    require: Callable[[int], Awaitable[None]]
    """Waits until the policy serves a version or a later one; raises an EpisodeSystemError or ConfigurationError at
    its bound."""

    async def run(self) -> None:
        """Run every step that has no manifest on the log yet."""
        for step in range(self.config.learner.steps):
            if await self.bus.batch(step) is None:
                self.progress.step(step)
                oldest = max(0, step - self.config.rollout.max_staleness)
                await self.bus.wait_policy(oldest)
                await self.require(oldest)
                self.progress.batch(await self.run_step(step))

    async def run_step(self, step: int) -> Batch:
        """Fill, publish and return the batch of ``step``.

        Raises :class:`ConfigurationError` when the bound on groups is reached with too few informative
        ones and the configuration says to stop.
        """
        rollout = self.config.rollout
        logged = await self._logged(step)
        started = trio.current_time()
        state = BatchState(rollout.groups, rollout.max_groups)
        plan = self._plan(step)
        settled_send, settled = trio.open_memory_channel[GroupResult](rollout.max_groups)

        async def launch(number: int) -> None:
            task = task_for(self.pool, self.config.seed, step, number, rollout.groups)
            await settled_send.send(await run_group(plan, number, task, logged.get(number, {})))

        with trio.move_on_after(rollout.batch) as scope:
            async with trio.open_nursery() as nursery:
                while not state.done:
                    for number in state.launch():
                        nursery.start_soon(launch, number)
                    result = await settled.receive()
                    state.settle(result)
                    self.progress.group(result, state)
        if scope.cancelled_caught:
            raise ConfigurationError(
                f"step {step} did not fill within rollout.batch = {rollout.batch:g} s: {state.informative} of "
                f"{rollout.groups} groups informative, {state.pending} pending; its complete samples are on the log"
            )
        batch = state.close(self.config.run, step, rollout.group_size, trio.current_time() - started)
        if not state.full and rollout.at_bound == "stop":
            raise ConfigurationError(_diagnosis(batch, rollout.groups, rollout.max_groups))
        await self.bus.publish_batch(batch)
        await self.bus.emit("batch", {"step": step, "outcome": batch.outcome, "seconds": batch.seconds})
        return batch

    async def _logged(self, step: int) -> dict[int, dict[int, Trajectory]]:
        """Samples of ``step`` that are on the log: group -> sample -> trajectory."""
        found: dict[int, dict[int, Trajectory]] = {}
        for trajectory in await self.bus.trajectories(step):
            found.setdefault(trajectory.id.group, {})[trajectory.id.sample] = trajectory
        return found

    def _plan(self, step: int) -> GroupPlan:
        rollout = self.config.rollout

        async def episode(task: Task, id: TrajectoryId) -> Trajectory:
            trajectory = await run_episode(self.setup, task, id, step)
            if not await self.bus.publish_trajectory(trajectory):
                # Another engine, or this one before a lost acknowledgement, was first: what the log holds counts.
                trajectory = (await self._logged(step))[id.group][id.sample]
            self.progress.episode(trajectory)
            return trajectory

        return GroupPlan(
            run=self.config.run,
            step=step,
            group_size=rollout.group_size,
            retries=rollout.sample_retries,
            backoff=rollout.retry_backoff,
            limiter=trio.CapacityLimiter(rollout.concurrency),
            episode=episode,
        )


def _diagnosis(batch: Batch, wanted: int, bound: int) -> str:
    zero = sum(group.bucket == "zero_variance" for group in batch.groups)
    solved = sum(group.bucket == "zero_variance" and group.rewards[0] > 0 for group in batch.groups)
    trained = sum(group.bucket == "trained" for group in batch.groups)
    return (
        f"step {batch.step}: only {trained} of {wanted} groups were informative after rollout.max_groups = {bound}; "
        f"{zero} had equal rewards ({solved} always solved, {zero - solved} never), system errors: "
        f"{batch.ledger.system_error or 'none'}. Re-probe and select the pool again, raise rollout.max_groups, "
        f"or set rollout.at_bound to short"
    )


def load_template(config: Config) -> ChatTemplate:
    """The model's chat template; raises :class:`ConfigurationError` where its episodes can't be played."""
    longest = config.rollout.limits.episode_tokens
    if longest > config.model.max_model_len:
        raise ConfigurationError(
            f"rollout.limits.episode_tokens ({longest}) is above model.max_model_len "
            f"({config.model.max_model_len}), so the actor would refuse the end of long episodes"
        )
    return ChatTemplate.from_folder(model_folder(config))


@asynccontextmanager
async def open_setup(config: Config, policy: Policy) -> AsyncIterator[EpisodeSetup]:
    """What episodes share, around a given policy."""
    template, sampling = load_template(config), config.rollout.sampling
    async with httpx.AsyncClient() as client:
        yield EpisodeSetup(
            policy=policy,
            template=template,
            environment=NativeEnvironment(
                lambda task: make_user(config.rollout.user, task, client), config.rollout.limits
            ),
            sampling=Sampling(sampling.temperature, sampling.top_k, sampling.top_p),
            limits=config.rollout.limits,
            max_staleness=config.rollout.max_staleness,
        )


@asynccontextmanager
async def open_runner(config: Config, actor_urls: Sequence[str], version: int = 0) -> AsyncIterator[Callable]:
    """A function that runs single attempts outside training, for probing and evaluation.

    ``await runner(task, attempt, retry, scope=…)`` returns a graded trajectory or raises an
    EpisodeSystemError. Whatever weights the actors serve are labelled ``version``.
    """
    async with ActorPool.attached(actor_urls, config, version=version) as policy, open_setup(config, policy) as setup:

        async def runner(task: Task, attempt: int, retry: int, *, scope: str) -> Trajectory:
            id = TrajectoryId(f"{config.run}-{scope}", 0, 0, attempt, retry)
            return await run_episode(setup, task, id, version)

        yield runner


def model_folder(config: Config) -> Path:
    """The base model's folder; a relative one lies in the run's folder."""
    if not config.model.folder:
        raise ConfigurationError("model.folder is empty: name a Hugging Face model folder")
    return config.path / config.model.folder
