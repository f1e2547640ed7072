"""The engine: steps, from an announced policy version to a published manifest.

At ``rollout.max_staleness`` 0 the steps are synchronous: step s starts when version s is served. At k it starts when
version s - k is, so that the learner's updates and the next steps' rollouts overlap.

Invariants: a trajectory is on the log before its group counts it (the log is the truth, rule 12), so an
engine restarted in mid-step finds every complete sample there and runs only the missing ones. A step is
over when its manifest is on the log; a step whose manifest is there is never run again.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx
import msgspec
import trio

from protocol.bus import Bus
from protocol.config import Config
from protocol.records import Batch, GroupRecord, Trajectory, TrajectoryId
from rollout_engine.actors.policy import Policy, Sampling
from rollout_engine.actors.pool import ActorPool
from rollout_engine.actors.scripted import Script, ScriptedPolicy
from rollout_engine.batch import BatchState
from rollout_engine.circuit import OutageStatus
from rollout_engine.clock import StepClock
from rollout_engine.curation.beliefs import Counts, TaskBeliefs
from rollout_engine.descriptors import allow_connections
from rollout_engine.diagnosis import diagnosis
from rollout_engine.environments.environment import AnyTask
from rollout_engine.environments.opening import open_environment
from rollout_engine.environments.task import Task
from rollout_engine.episode import EpisodeSetup, run_episode
from rollout_engine.errors import ConfigurationError, RunStopped
from rollout_engine.gate import Gate
from rollout_engine.group import GroupPlan, GroupResult, run_group
from rollout_engine.heap import paced_collections
from rollout_engine.journal import Journal
from rollout_engine.progress import StepProgress
from rollout_engine.resumption import Resumption
from rollout_engine.schedule import Schedule
from rollout_engine.tokens.template import ChatTemplate


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
    probed: Mapping[str, Counts] = field(default_factory=dict)
    """What the probe counted of each task: (clean attempts, passes)."""
    limiter: AbstractAsyncContextManager[None] | None = None
    """Lets as many episodes run at once as may; by default ``rollout.concurrency``."""
    play: Callable[[EpisodeSetup, Task, TrajectoryId, int], Awaitable[Trajectory]] = run_episode
    """Runs one episode; a simulation brings its own."""

    def __post_init__(self) -> None:
        self._limiter = self.limiter or trio.CapacityLimiter(self.config.rollout.concurrency)
        self._gate = Gate(self.config.rollout.outage, self._outage, len(self.pool))
        self._manifests: dict[int, Batch] = {}

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

        Raises :class:`RunStopped` when a bound is reached with too few informative groups and the configuration says
        to stop, and when an outage lasts longer than it may.
        """
        rollout = self.config.rollout
        beliefs = await self._beliefs(step)
        schedule = self._schedule(step, beliefs)
        histogram = beliefs.histogram([task.id for task in self.pool], step)
        journal, logged = await Journal.open(self.bus, self.config.run, step), await self._logged(step)
        # What was launched before this engine was started again has its place in launch order, needed or not.
        launched = max(journal.groups, *(group + 1 for group in logged), 0)
        state = BatchState(rollout, schedule.chance, await self._surplus(step), launched)
        oldest = max(0, step - rollout.max_staleness)
        resumption = Resumption(self.pool, schedule.task, rollout.group_size, oldest)
        plan = self._plan(step, journal, resumption)
        settled_send, settled = trio.open_memory_channel[GroupResult](math.inf)
        self.progress.pool(histogram)
        for trajectory in [t for samples in logged.values() for t in samples.values()]:
            self.progress.episode(trajectory)

        async def run(number: int) -> None:
            result, task = resumption.take_up(number, logged.get(number, {}))
            if task is not None:
                await run_group(plan, result, task)
            settled_send.send_nowait(result)

        self._gate.circuits.ask_again(trio.current_time())
        async with (
            _failures_kept(journal),
            StepClock(rollout.batch, self._held_by_outage, self.bus.held_up).running() as clock,
        ):
            async with trio.open_nursery() as nursery:
                wave = state.pending
                while not state.done:
                    wave += state.launch()
                    if wave:
                        self.progress.wave(len(wave), state)
                    for number in wave:
                        nursery.start_soon(run, number)
                        # A group a pass of the event loop: a thousand at once would stop it.
                        await trio.lowlevel.checkpoint()
                    wave = []
                    result = await settled.receive()
                    state.settle(result)
                    self.progress.group(result, state)
                if not self._may_carry(step + 1, state.oldest_version):
                    nursery.cancel_scope.cancel()
        if clock.expired:
            state.expire()
        if state.pending:
            logged = await self._logged(step)  # what was cancelled while it was being published may be there
            for number in state.pending:
                state.settle(resumption.take_up(number, logged.get(number, {}))[0])
        await journal.flush()
        batch = state.close(self.config.run, step, clock.seconds, journal.ledger, histogram)
        if not state.full and rollout.at_bound == "stop":
            raise RunStopped(diagnosis(batch, rollout))
        if not await self.bus.publish_batch(batch):
            batch = await self.bus.batch(step)  # another engine was first: what the log holds counts
        await self.bus.emit("batch", {"step": step, "outcome": batch.outcome, "seconds": batch.seconds})
        return batch

    async def _beliefs(self, step: int) -> TaskBeliefs:
        """The tasks' posteriors as of ``step``, from the probe and the manifests of earlier steps."""
        beliefs = TaskBeliefs(self.probed, self.config.sampling.forgetting)
        for earlier in range(step):
            if batch := await self._manifest(earlier):
                beliefs.observe(batch)
        return beliefs

    def _schedule(self, step: int, beliefs: TaskBeliefs) -> Schedule:
        rollout = self.config.rollout

        def chance(task: Task) -> float:
            return beliefs.mixed(task.id, step, rollout.group_size)

        return Schedule(self.pool, self.config.sampling, self.config.seed, step, rollout.groups, chance)

    def _may_carry(self, step: int, version: int) -> bool:
        """Whether ``step`` may train on what policy version ``version`` sampled."""
        return version >= step - self.config.rollout.max_staleness

    async def _surplus(self, step: int) -> list[GroupRecord]:
        """Informative groups that earlier steps left over and this one may train on, in launch order.

        At ``rollout.max_staleness`` 0 there are none: every step has a policy version of its own. A step that cut
        episodes short has none either, because what it has left over are those that were quick.
        """
        found: dict[TrajectoryId, GroupRecord] = {}
        for earlier in range(max(0, step - self.config.rollout.max_staleness), step):
            batch = await self._manifest(earlier)
            for group in batch.groups if batch else ():
                oldest = min(group.versions, default=batch.policy_version)
                spare = group.bucket == "surplus" and len(set(group.rewards)) > 1 and not batch.ledger.cancelled
                spare = spare and len(group.rewards) == self.config.rollout.group_size
                if spare and self._may_carry(step, oldest):
                    found[group.trajectories[0]] = group
                else:
                    found.pop(group.trajectories[0], None)
        return list(found.values())

    async def _manifest(self, step: int) -> Batch | None:
        """The manifest of an earlier step; a logged one never changes."""
        if step not in self._manifests and (batch := await self.bus.batch(step)):
            self._manifests[step] = batch
        return self._manifests.get(step)

    async def _logged(self, step: int) -> dict[int, dict[int, Trajectory]]:
        """Samples of ``step`` that are on the log, without their arrays: group -> sample -> trajectory."""
        found: dict[int, dict[int, Trajectory]] = {}
        for trajectory in await self.bus.trajectories(step, arrays=False):
            found.setdefault(trajectory.id.group, {})[trajectory.id.sample] = _slim(trajectory)
        return found

    def _plan(self, step: int, journal: Journal, resumption: Resumption) -> GroupPlan:
        async def episode(task: Task, id: TrajectoryId) -> Trajectory:
            trajectory = await self.play(self.setup, task, id, step)
            if not await self.bus.publish_trajectory(trajectory):
                # Another engine, or this one before a lost acknowledgement, was first: what the log holds counts.
                trajectory = (await self._logged(step))[id.group][id.sample]
                if trajectory.task != task.id or not resumption.fits(trajectory):
                    raise RunStopped(
                        f"another engine works on step {step} of run {self.config.run} under another configuration: "
                        f"its sample {trajectory.id} is of task {trajectory.task}, ours of {task.id}. Stop one of the "
                        "two, then run the same command again"
                    )
            self.progress.episode(trajectory)
            return _slim(trajectory)

        return GroupPlan(
            retries=self.config.rollout.retries,
            limiter=self._limiter,
            gate=self._gate,
            journal=journal,
            episode=episode,
            failed=self.progress.failed,
        )

    def _held_by_outage(self) -> float:
        return self._gate.circuits.paused_seconds(trio.current_time())

    async def _outage(self, outages: list[OutageStatus]) -> None:
        self.progress.outage(outages)
        await self.bus.emit("outage", {"open": [asdict(outage) for outage in outages]})


@asynccontextmanager
async def _failures_kept(journal: Journal) -> AsyncIterator[None]:
    """The log says how the last attempts failed, also where the step stops in the block: no other one follows with
    which they would be written."""
    try:
        yield
    except BaseExceptionGroup as stop:
        if stop.subgroup(RunStopped):
            await journal.flush()
        raise


def _slim(trajectory: Trajectory) -> Trajectory:
    """A logged trajectory as a group needs it: a step doesn't hold what the log holds."""
    return msgspec.structs.replace(trajectory, tokens=None, messages=())


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
async def open_setup(config: Config, policy: Policy, samples: int | None = None) -> AsyncIterator[EpisodeSetup]:
    """What episodes share, around a given policy. ``samples``: attempts at one task; None: ``rollout.group_size``."""
    if config.judge.kind == "agreeable" and not isinstance(policy, ScriptedPolicy):
        raise ConfigurationError(
            "judge.kind is agreeable, which says yes to everything: set it to llm wherever a model plays"
        )
    template, sampling = load_template(config), config.rollout.sampling
    allow_connections(max(config.rollout.concurrency, config.evaluation.concurrency))
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(httpx.AsyncClient())
        environment = await stack.enter_async_context(
            open_environment(config, client, samples or config.rollout.group_size)
        )
        heap = stack.enter_context(paced_collections())
        yield EpisodeSetup(
            policy=policy,
            template=template,
            environment=environment,
            sampling=Sampling(sampling.temperature, sampling.top_k, sampling.top_p),
            limits=config.rollout.limits,
            max_staleness=config.rollout.max_staleness,
            heap=heap,
        )


@asynccontextmanager
async def open_runner(
    config: Config, players: Sequence[str] | Mapping[str, Script], version: int = 0, samples: int = 1
) -> AsyncIterator[Callable]:
    """A function that runs single attempts outside training, for probing and evaluation.

    ``await runner(task, attempt, retry, scope=…)`` returns a graded trajectory or raises an EpisodeSystemError.
    ``players``: the actors by their URLs, or what is said and done in each task, by its id. Whatever plays is labelled
    ``version``.
    """
    async with open_player(config, players, version) as policy, open_setup(config, policy, samples) as setup:

        async def runner(task: AnyTask, attempt: int, retry: int, *, scope: str) -> Trajectory:
            id = TrajectoryId(f"{config.run}-{scope}", 0, 0, attempt, retry)
            return await run_episode(setup, task, id, version)

        yield runner


@asynccontextmanager
async def open_player(
    config: Config, players: Sequence[str] | Mapping[str, Script], version: int
) -> AsyncIterator[Policy]:
    """The policy of ``players``; see :func:`open_runner`."""
    if isinstance(players, Mapping):
        yield ScriptedPolicy.of_scripts(load_template(config), players, version)
    else:
        async with ActorPool.attached(players, config, version=version) as policy:
            yield policy


def model_folder(config: Config) -> Path:
    """The base model's folder; a relative one lies in the run's folder."""
    if not config.model.folder:
        raise ConfigurationError("model.folder is empty: name a Hugging Face model folder")
    return config.path / config.model.folder
