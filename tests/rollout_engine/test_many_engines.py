"""Several engines on one run, killed and started again at any time: one manifest a step, of what the log holds."""

import random

import pytest
import trio

from protocol.config import Retries, Retry
from rollout_engine.errors import ActorError
from tests.rollout_engine.memory import MemoryLog
from tests.rollout_engine.test_engine import GROUPS, SIZE, MixedPolicy, make_engine, tasks_of  # noqa: F401


class Distant(MemoryLog):
    """Takes its time to store and to answer."""

    def __init__(self, draw):
        super().__init__()
        self._draw = draw

    async def _after_a_while(self, write, record):
        await trio.sleep(self._draw.random())
        answer = await write(record)
        await trio.sleep(self._draw.random())
        return answer

    async def publish_trajectory(self, trajectory):
        return await self._after_a_while(super().publish_trajectory, trajectory)

    async def publish_attempts(self, record):
        return await self._after_a_while(super().publish_attempts, record)

    async def publish_batch(self, batch):
        return await self._after_a_while(super().publish_batch, batch)


class Slow(MixedPolicy):
    """Some seconds a turn; one turn in fifty fails."""

    def __init__(self, template, solved, draw):
        super().__init__(template, solved)
        self._draw = draw

    async def generate(self, request):
        await trio.sleep(self._draw.expovariate(0.2))
        if self._draw.random() < 0.02:
            raise ActorError("the actor died")
        return await super().generate(request)


@pytest.mark.parametrize(("seed", "staleness"), [(2, 0), (3, 1), (4, 0), (5, 1)])
async def test_several_engines_on_one_run_agree(make_engine, tiny_template, autojump_clock, seed, staleness):  # noqa: F811
    draw = random.Random(seed)
    log, solved = Distant(draw), tasks_of(0, [0, 2]) + tasks_of(1, [1])

    async def keep_running(delay):
        await trio.sleep(delay)
        for life in [draw.uniform(0, 120) for _ in range(4)] + [float("inf")]:
            with trio.move_on_after(life):
                engine = make_engine(
                    log,
                    Slow(tiny_template, solved, draw),
                    wave_confidence=0.5,
                    max_groups=12,
                    retries=Retries(Retry(times=5)),
                    max_staleness=staleness,
                )
                await engine.run()
                return

    async with trio.open_nursery() as nursery:
        for delay in (0, 5, 30):
            nursery.start_soon(keep_running, delay)
    assert sorted(log.batches) == [0, 1]
    for batch in log.batches.values():
        assert batch.outcome == "full" and batch.ledger.trained == GROUPS * SIZE
        for group in batch.groups:
            held = [log.logged[id.step, id.group, id.sample] for id in group.trajectories]
            assert tuple(trajectory.id for trajectory in held) == group.trajectories
            assert tuple(trajectory.reward for trajectory in held) == group.rewards
            assert {trajectory.task for trajectory in held} == {group.task}
