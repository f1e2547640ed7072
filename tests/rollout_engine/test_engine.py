"""A step from an announced version to its manifest, over a log in memory: rules 1, 3, 10, 11 and 12 at the engine."""

from collections import Counter
from dataclasses import replace

import msgspec
import pytest
import trio

from protocol.config import Outage, Retries, Retry, TaskSampling
from protocol.records import Ledger
from rollout_engine.actors.policy import Sampling
from rollout_engine.actors.scripted import ScriptedPolicy
from rollout_engine.engine import Engine, load_template
from rollout_engine.environments.native import NativeEnvironment
from rollout_engine.environments.registry import load_tasks
from rollout_engine.episode import EpisodeSetup
from rollout_engine.errors import ActorError, ConfigurationError, RunStopped
from rollout_engine.schedule import task_for
from rollout_engine.users import scripted_user
from tests.rollout_engine.memory import Killed, MemoryLog

TASKS = load_tasks(("travel", "retail"), "train", 40, 0)
BY_ID = {task.id: task for task in TASKS}
GROUPS, SIZE, BOUND = 3, 4, 6


class Progress:
    """Counts what a terminal would be told."""

    def __init__(self):
        self.told = Counter()

    def step(self, step):
        self.told["step"] += 1

    def episode(self, trajectory):
        self.told["episode"] += 1

    def group(self, result, state):
        self.told["group"] += 1

    def batch(self, batch):
        self.told["batch"] += 1

    def pool(self, histogram):
        self.told["pool"] += 1

    def wave(self, groups, state):
        self.told["wave"] += 1

    def failed(self, id, error, again):
        self.told[error.kind] += 1

    def outage(self, outages):
        self.told["outage"] += 1


class MixedPolicy:
    """Plays the oracle on even samples and the task's main slip on odd ones; on ``solved`` tasks always the oracle.

    An episode's key is TASK#RUN/STEP/GROUP/SAMPLE/ATTEMPT, as the engine makes it.
    """

    def __init__(self, template, solved=(), failing=()):
        self.solved, self.failing, self.started = set(solved), set(failing), []
        self._template = template
        self._policies = {}

    async def generate(self, request):
        task, _, place = request.episode.partition("#")
        _, step, group, sample, attempt = place.split("/")
        key = (int(group), int(sample), int(attempt))
        if request.episode not in self._policies:
            self.started.append(key)
            wrong = int(sample) % 2 and task not in self.solved
            script = BY_ID[task].slips[0].script if wrong else BY_ID[task].script
            self._policies[request.episode] = ScriptedPolicy(self._template, lambda _: script, version=int(step))
        if key in self.failing:
            raise ActorError("the actor died")
        return await self._policies[request.episode].generate(request)


@pytest.fixture
def make_engine(tiny_config, tiny_template):
    def make(log, policy, **rollout):
        settings = {
            "groups": GROUPS,
            "group_size": SIZE,
            "max_groups": BOUND,
            "wave_confidence": 0.0,
            "retries": Retries(Retry(times=1)),
        } | rollout
        learner = msgspec.structs.replace(tiny_config.learner, steps=2)
        sampling = settings.pop("sampling", tiny_config.sampling)
        config = msgspec.structs.replace(
            tiny_config,
            learner=learner,
            sampling=sampling,
            rollout=msgspec.structs.replace(tiny_config.rollout, **settings),
        )
        setup = EpisodeSetup(
            policy,
            tiny_template,
            NativeEnvironment(scripted_user, config.rollout.limits),
            Sampling(),
            config.rollout.limits,
            config.rollout.max_staleness,
        )
        required = []

        async def require(version):
            required.append(version)

        engine = Engine(config, TASKS, setup, log, Progress(), require)
        engine.required = required
        return engine

    return make


def tasks_of(step, numbers):
    return [task_for(TASKS, 0, step, number, GROUPS).id for number in numbers]


async def test_a_run_waits_for_each_version_and_logs_each_steps_manifest(make_engine, tiny_template):
    log, policy = MemoryLog(), MixedPolicy(tiny_template)
    engine = make_engine(log, policy)
    await engine.run()
    assert log.waited == engine.required == [0, 1]
    assert sorted(log.batches) == [0, 1] and [kind for kind, _ in log.events] == ["batch", "batch"]
    for step, batch in log.batches.items():
        assert batch.outcome == "full" and batch.policy_version == step
        assert [group.task for group in batch.groups] == tasks_of(step, range(GROUPS))
        assert all(group.rewards == (1.0, 0.0, 1.0, 0.0) for group in batch.groups)
        assert batch.ledger.started == batch.ledger.trained == GROUPS * SIZE
        assert all(log.logged[i.step, i.group, i.sample].id == i for g in batch.groups for i in g.trajectories)
    told = {"step": 2, "pool": 2, "wave": 2, "episode": 2 * GROUPS * SIZE, "group": 2 * GROUPS, "batch": 2}
    assert engine.progress.told == told


@pytest.mark.parametrize(("staleness", "awaited"), [(1, [0, 0]), (0, [0, 1])])
async def test_a_step_starts_as_soon_as_a_version_within_the_bound_is_served(
    make_engine, tiny_template, staleness, awaited
):
    class Behind(MixedPolicy):
        """Serves version 0 all along, as while the learner is at its first update."""

        async def generate(self, request):
            generation = await super().generate(request)
            return replace(generation, versions=[max(0, v - staleness) for v in generation.versions])

    log = MemoryLog()
    engine = make_engine(log, Behind(tiny_template), max_staleness=staleness)
    await engine.run()
    assert log.waited == engine.required == awaited
    assert [batch.policy_version for batch in log.batches.values()] == awaited
    assert [group.versions for group in log.batches[1].groups] == [(awaited[1],)] * GROUPS


async def test_a_step_whose_manifest_is_logged_is_not_run_again(make_engine, tiny_template):
    log = MemoryLog()
    await make_engine(log, MixedPolicy(tiny_template)).run()
    again = MixedPolicy(tiny_template)
    engine = make_engine(log, again)
    await engine.run()
    assert again.started == [] and engine.required == [] and not engine.progress.told


@pytest.mark.parametrize("complete", [0, 1, 5, GROUPS * SIZE - 1])
async def test_a_restart_in_mid_step_runs_only_the_missing_samples(make_engine, tiny_template, complete):
    log = MemoryLog()
    log.stop_after = complete
    with pytest.raises(ExceptionGroup) as killed:
        await make_engine(log, MixedPolicy(tiny_template)).run_step(0)
    assert killed.group_contains(Killed)
    kept = dict(log.logged)
    assert len(kept) == complete
    log.stop_after = None
    policy = MixedPolicy(tiny_template)
    batch = await make_engine(log, policy).run_step(0)
    wanted = {(group, sample) for group in range(GROUPS) for sample in range(SIZE)}
    assert {(g, s) for g, s, _ in policy.started} == wanted - {(g, s) for _, g, s in kept}
    assert all(log.logged[place] is trajectory for place, trajectory in kept.items())
    # The killed engine had started every sample; those it hadn't finished end as cancelled, and ran under a new number.
    lost = GROUPS * SIZE - complete
    assert batch.ledger == Ledger(GROUPS * SIZE + lost, trained=GROUPS * SIZE, cancelled=lost)
    assert {attempt for _, _, attempt in policy.started} == {1}


async def test_a_sample_with_a_system_error_runs_again_alone(make_engine, tiny_template, autojump_clock):
    log, policy = MemoryLog(), MixedPolicy(tiny_template, failing={(1, 2, 0)})
    batch = await make_engine(log, policy).run_step(0)
    attempts = Counter((group, sample) for group, sample, _ in policy.started)
    assert attempts.pop((1, 2)) == 2 and set(attempts.values()) == {1}
    assert batch.groups[1].trajectories[2].attempt == 1
    assert batch.ledger.system_error == {"actor": 1} and batch.ledger.started == GROUPS * SIZE + 1


async def test_a_sample_out_of_retries_has_its_group_replaced(make_engine, tiny_template, autojump_clock):
    log, policy = MemoryLog(), MixedPolicy(tiny_template, failing={(1, 2, 0), (1, 2, 1)})
    batch = await make_engine(log, policy).run_step(0)
    assert [group.group for group in batch.groups] == [0, 2, 3]
    assert batch.ledger.system_error == {"actor": 2} and batch.ledger.surplus == SIZE - 1
    assert batch.ledger.trained == GROUPS * SIZE


async def test_what_the_log_held_first_counts(make_engine, tiny_template):
    log = MemoryLog()
    log.lost_acknowledgements = {(0, 0, 0)}
    batch = await make_engine(log, MixedPolicy(tiny_template)).run_step(0)
    assert batch.groups[0].trajectories[0].attempt == 7
    assert batch.groups[0].rewards == (0.0, 0.0, 1.0, 0.0)
    assert log.logged[0, 0, 0].verdict.reasons == ("the first",)


async def test_zero_variance_groups_are_replaced(make_engine, tiny_template):
    log, policy = MemoryLog(), MixedPolicy(tiny_template, solved=tasks_of(0, [1]))
    batch = await make_engine(log, policy).run_step(0)
    assert [group.bucket for group in batch.groups] == ["trained", "zero_variance", "trained", "trained"]
    assert batch.ledger.zero_variance == SIZE and batch.outcome == "full"


async def test_at_the_bound_the_batch_is_short_or_the_run_stops_with_a_diagnosis(make_engine, tiny_template):
    solved = tasks_of(0, range(1, BOUND))
    log = MemoryLog()
    short = await make_engine(log, MixedPolicy(tiny_template, solved), at_bound="short").run_step(0)
    assert short.outcome == "short" and len(short.groups) == BOUND and short.ledger.trained == SIZE
    assert short.bound == "max_groups"

    log = MemoryLog()
    with pytest.raises(RunStopped) as stop:
        await make_engine(log, MixedPolicy(tiny_template, solved), at_bound="stop").run_step(0)
    assert "only 1 of 3 groups were informative at rollout.max_groups = 6;" in str(stop.value)
    assert "5 had equal rewards (5 always solved, 0 never)" in str(stop.value)
    assert log.batches == {} and len(log.logged) == BOUND * SIZE


class Stuck(MixedPolicy):
    """One episode of group 2 never answers."""

    async def generate(self, request):
        if request.episode.endswith("/2/3/0"):
            self.started.append((2, 3, 0))
            await trio.sleep_forever()
        return await super().generate(request)


async def test_a_step_that_does_not_fill_in_time_is_short_or_stops_and_names_what_was_in_flight(
    make_engine, tiny_template, autojump_clock
):
    log = MemoryLog()
    began = trio.current_time()
    short = await make_engine(log, Stuck(tiny_template), batch=60.0).run_step(0)
    assert trio.current_time() - began == 60.0 and short.seconds == 60.0
    assert (short.outcome, short.bound) == ("short", "batch") and log.batches == {0: short}
    assert short.ledger == Ledger(GROUPS * SIZE, trained=2 * SIZE, surplus=SIZE - 1, cancelled=1)

    log = MemoryLog()
    message = (
        r"only 2 of 3 groups were informative at rollout.batch = 60 s; .* 1 episodes were cut short, "
        r"system errors: none. Raise rollout.batch"
    )
    with pytest.raises(RunStopped, match=message):
        await make_engine(log, Stuck(tiny_template), batch=60.0, at_bound="stop").run_step(0)
    assert len(log.logged) == GROUPS * SIZE - 1 and log.batches == {}
    batch = await make_engine(log, MixedPolicy(tiny_template), at_bound="stop").run_step(0)
    assert batch.ledger == Ledger(GROUPS * SIZE + 1, trained=GROUPS * SIZE, cancelled=1)


async def test_a_full_log_costs_the_step_no_time(make_engine, tiny_template, autojump_clock):
    class Full(MemoryLog):
        """Has no room for ten minutes."""

        async def publish_trajectory(self, trajectory):
            if not self.logged and not self.waited_for_room:
                for _ in range(600):
                    self.waited_for_room += 1
                    await trio.sleep(1)
            return await super().publish_trajectory(trajectory)

    log = Full()
    batch = await make_engine(log, MixedPolicy(tiny_template), batch=60.0).run_step(0)
    assert batch.outcome == "full" and batch.seconds == 600.0 and batch.ledger.cancelled == 0


async def test_once_the_first_groups_fill_the_batch_what_runs_on_is_cancelled(
    make_engine, tiny_template, autojump_clock
):
    log = MemoryLog()
    engine = make_engine(log, Stuck(tiny_template), groups=2, wave_confidence=0.9)
    batch = await engine.run_step(0)
    assert batch.outcome == "full" and batch.waves == 1
    assert [g.group for g in batch.groups if g.bucket == "trained"] == [0, 1]
    assert batch.ledger.cancelled >= 1 and batch.ledger.trained == 2 * SIZE
    assert batch.ledger.started == batch.ledger.trained + batch.ledger.surplus + batch.ledger.cancelled
    assert len(log.logged) == batch.ledger.trained + batch.ledger.surplus


async def test_a_step_that_may_lag_trains_on_what_the_one_before_left_over(make_engine, tiny_template):
    """Every task comes out mixed, but nobody knows it yet: more groups are launched than needed."""
    log = MemoryLog()
    lagging = {"wave_confidence": 0.3, "max_staleness": 2, "max_groups": 20}
    first = await make_engine(log, MixedPolicy(tiny_template), **lagging).run_step(0)
    spare = [g for g in first.groups if g.bucket == "surplus"]
    assert first.ledger.cancelled == 0 and 0 < len(spare) < GROUPS
    engine = make_engine(log, MixedPolicy(tiny_template), **lagging)
    second = await engine.run_step(1)
    assert second.groups[: len(spare)] == tuple(msgspec.structs.replace(g, bucket="trained") for g in spare)
    assert second.ledger.carried == len(spare) * SIZE and second.ledger.trained == GROUPS * SIZE
    assert second.ledger.started + second.ledger.carried == second.ledger.trained + second.ledger.surplus
    assert second.policy_version == 0

    synchronous = await make_engine(log, MixedPolicy(tiny_template), max_staleness=0).run_step(2)
    assert synchronous.ledger.carried == 0 and synchronous.policy_version == 2


async def test_tasks_are_drawn_as_before_after_a_restart(make_engine, tiny_template):
    """Adaptive sampling goes by the log of earlier steps, never by what an engine remembers."""
    adaptive = {"sampling": TaskSampling("adaptive", forgetting=0.1, exploration=0.3)}
    log = MemoryLog()
    one = make_engine(log, MixedPolicy(tiny_template, solved=tasks_of(0, [0])), **adaptive)
    await one.run()
    undisturbed = {step: [g.task for g in batch.groups] for step, batch in log.batches.items()}
    later = log.batches.pop(1)
    log.logged = {place: t for place, t in log.logged.items() if place[0] == 0}
    again = await make_engine(log, MixedPolicy(tiny_template), **adaptive).run_step(1)
    assert [g.task for g in again.groups] == undisturbed[1] and again.pool == later.pool
    assert sum(again.pool.values()) == len(TASKS) and again.pool != log.batches[0].pool


async def test_a_restart_with_another_pool_mixes_no_tasks_and_has_its_bounds_to_itself(make_engine, tiny_template):
    """What a run that stopped at its bound is told: select the pool again, then run the same command."""
    tasks = tasks_of(0, range(BOUND))
    log = MemoryLog()
    with pytest.raises(RunStopped):
        await make_engine(log, MixedPolicy(tiny_template, tasks[2:]), at_bound="stop").run_step(0)
    assert len(log.logged) == BOUND * SIZE
    for sample in range(1, SIZE):  # group 0 and group 1 were killed in the middle
        del log.logged[0, 0, sample], log.logged[0, 1, sample]

    policy = MixedPolicy(tiny_template)
    engine = make_engine(log, policy, at_bound="stop")
    # Of the first tasks, the second has stayed; which number gets which task has changed for all groups.
    engine.pool = [task for task in reversed(TASKS) if task.id not in set(tasks) - {tasks[1]}]
    batch = await engine.run_step(0)
    assert batch.outcome == "full" and {group.group for group in batch.groups} == {1, BOUND, BOUND + 1}
    assert batch.groups[0].task == tasks[1] and not {group.task for group in batch.groups} & ({*tasks} - {tasks[1]})
    for group in batch.groups:
        assert {log.logged[id.step, id.group, id.sample].task for id in group.trajectories} == {group.task}
    assert {group for group, *_ in policy.started} == {1, BOUND, BOUND + 1}
    # Five groups are retired, one of them with a single sample; the six that were removed above count as cut short.
    assert batch.ledger == Ledger(35, trained=GROUPS * SIZE, surplus=4 * SIZE + 1, cancelled=6)


async def test_a_restart_that_may_lag_less_trains_on_nothing_older(make_engine, tiny_template):
    """A manifest with tokens that the learner refuses could never be taken back."""

    class Behind(MixedPolicy):
        async def generate(self, request):
            generation = await super().generate(request)
            return replace(generation, versions=[0] * len(generation.versions))

    log = MemoryLog()
    log.stop_after = SIZE + 1
    with pytest.raises(ExceptionGroup):
        await make_engine(log, Behind(tiny_template), max_staleness=1).run_step(1)
    log.stop_after = None
    older = {group for _, group, _ in log.logged}
    batch = await make_engine(log, MixedPolicy(tiny_template), max_staleness=0, max_groups=GROUPS).run_step(1)
    assert batch.outcome == "full" and batch.policy_version == 1
    assert not {group.group for group in batch.groups} & older
    assert batch.ledger.surplus == SIZE + 1 and batch.ledger.trained == GROUPS * SIZE


@pytest.mark.parametrize("size", [2, 6])
async def test_a_restart_with_another_group_size_keeps_what_it_can(make_engine, tiny_template, size):
    log = MemoryLog()
    log.stop_after = GROUPS * SIZE - 1
    with pytest.raises(ExceptionGroup):
        await make_engine(log, MixedPolicy(tiny_template)).run_step(0)
    log.stop_after = None
    batch = await make_engine(log, MixedPolicy(tiny_template), group_size=size).run_step(0)
    assert batch.outcome == "full" and all(len(group.rewards) == size for group in batch.groups)
    assert batch.ledger.trained == GROUPS * size
    assert batch.ledger.surplus == sum(sample >= size for _, _, sample in log.logged)


async def test_groups_of_another_size_are_not_carried_over(make_engine, tiny_template):
    log = MemoryLog()
    lagging = {"wave_confidence": 0.3, "max_staleness": 2, "max_groups": 20}
    first = await make_engine(log, MixedPolicy(tiny_template), **lagging).run_step(0)
    assert first.ledger.surplus
    second = await make_engine(log, MixedPolicy(tiny_template), group_size=SIZE + 1, **lagging).run_step(1)
    assert second.ledger.carried == 0 and all(len(group.rewards) == SIZE + 1 for group in second.groups)


async def test_an_engine_that_meets_another_pools_samples_stops_and_says_why(make_engine, tiny_template):
    class Two(MemoryLog):
        async def publish_trajectory(self, trajectory):
            id = trajectory.id
            other = msgspec.structs.replace(trajectory, task="of another pool")
            self.logged.setdefault((id.step, id.group, id.sample), other)
            return False

    with pytest.raises(ExceptionGroup) as stop:
        await make_engine(Two(), MixedPolicy(tiny_template)).run_step(0)
    assert stop.group_contains(RunStopped, match="another engine works on step 0 .* is of task of another pool")


class Flaky(MixedPolicy):
    """No actor answers until ``until``; then all is well."""

    def __init__(self, template, until):
        super().__init__(template)
        self.until, self.asked, self.running, self.peak = until, [], 0, 0

    async def generate(self, request):
        await trio.sleep(1.0)
        if trio.current_time() < self.until:
            self.asked.append(trio.current_time())
            raise ActorError("answered 503")
        return await super().generate(request)


async def test_a_run_rides_through_an_outage_without_spending_its_retries(make_engine, tiny_template, autojump_clock):
    """600 s without an actor, and one retry a sample: nothing is lost, and the step's own 60 s don't count them."""
    log, begin = MemoryLog(), trio.current_time()
    policy = Flaky(tiny_template, until=begin + 600)
    outage = Outage(errors=4, among=6, probe=5.0, max_probe=60.0)
    engine = make_engine(log, policy, outage=outage, batch=60.0)
    batch = await engine.run_step(0)
    assert batch.outcome == "full" and batch.ledger.trained == GROUPS * SIZE
    assert batch.ledger.system_error == {"actor": len(policy.asked)}
    after = [t - begin for t in policy.asked if t - begin > 2]
    # Probes: 5 s after the outage opened, then 10 s, 20 s, 40 s after each failure, and every 60 s.
    assert after == [7.0, 18.0, 39.0, 80.0, 141.0, 202.0, 263.0, 324.0, 385.0, 446.0, 507.0, 568.0]
    assert 600 < batch.seconds < 700
    assert engine.progress.told["outage"] >= 3 and engine.progress.told["actor"] == len(policy.asked)
    kinds = [data["open"] for kind, data in log.events if kind == "outage"]
    assert kinds[0][0]["kind"] == "actor" and kinds[0][0]["paused"] and kinds[-1] == []


async def test_an_outage_that_lasts_too_long_stops_the_run_and_says_what_to_do(
    make_engine, tiny_template, autojump_clock
):
    log = MemoryLog()
    engine = make_engine(log, Flaky(tiny_template, until=float("inf")), outage=Outage(errors=4, among=6, longest=300.0))
    with pytest.raises(ExceptionGroup) as stop:
        await engine.run_step(0)
    assert stop.group_contains(
        RunStopped,
        match="'actor' for 300 s .* the last: answered 503. Please look at the actors .* run the same command again",
    )
    assert log.batches == {}
    # The log says of every attempt that failed how it did, also of the last: no start follows that would take it along.
    failed = {attempt[:3] for record in log.records for attempt in record.failed}
    assert failed and failed == {attempt for record in log.records for attempt in record.started}


async def test_a_service_that_asks_for_a_day_stops_the_run_in_time(make_engine, tiny_template, autojump_clock):
    """All samples wait for it, none at the gate, and the step's clock stands still."""

    class Resting(MixedPolicy):
        async def generate(self, request):
            error = ActorError("answered 429")
            error.retry_after = 86400.0
            raise error

    outage = Outage(errors=4, among=6, longest=900.0)
    engine, began = make_engine(MemoryLog(), Resting(tiny_template), outage=outage), trio.current_time()
    with pytest.raises(ExceptionGroup) as stop:
        await engine.run_step(0)
    assert stop.group_contains(RunStopped, match="'actor' for 900 s .* the last: answered 429")
    assert 900 <= trio.current_time() - began <= 900 + 600


async def test_an_outage_at_a_steps_end_is_probed_in_the_next_before_it_is_too_long(
    make_engine, tiny_template, autojump_clock
):
    """The learner took an hour, in which nobody asked."""
    log = MemoryLog()

    class Broken(MixedPolicy):
        async def generate(self, request):
            await trio.sleep(1.0)
            if broken[0] and not request.episode.endswith("/0/0/0"):
                raise ActorError("answered 503")
            return await super().generate(request)

    broken = [True]
    engine = make_engine(log, Broken(tiny_template), outage=Outage(errors=4, among=6), batch=60.0)
    with trio.move_on_after(30):  # stopped in mid-step, with the outage open
        await engine.run_step(0)
    await trio.sleep(3600)
    broken[0] = False
    batch = await engine.run_step(0)
    assert batch.outcome == "full" and batch.seconds < 60


def test_a_context_shorter_than_an_episode_is_refused(tiny_config):
    model = msgspec.structs.replace(tiny_config.model, max_model_len=599)
    with pytest.raises(ConfigurationError, match=r"episode_tokens \(600\) is above model.max_model_len \(599\)"):
        load_template(msgspec.structs.replace(tiny_config, model=model))
