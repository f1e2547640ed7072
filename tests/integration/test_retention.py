"""What the log forgets, what it keeps, and what it says of what is gone."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from learner.batches import NatsBatches
from protocol import subjects
from protocol.bus import RecordPurged, RunNotFound, check, connect
from protocol.config import Config, Nats, Rollout
from protocol.log import LogError, export, read
from protocol.records import Attempts, Batch, GroupRecord, Ledger, TrajectoryId

pytestmark = pytest.mark.nats

VERB = Path(__file__).parents[2] / "bin" / "trajectories"
STEPS = 4


def _batch(run: str, step: int, ids) -> Batch:
    group = GroupRecord(0, "t", tuple(ids), (0.0, 1.0), "trained")
    return Batch(run, step, step, 2, (group,), Ledger(2, trained=2))


@pytest.fixture
def logged(nats_config, run, make_trajectory):
    """Four steps of two samples, one of each with claim-checked arrays; step 3 trains on what step 2 left over."""

    async def publish() -> None:
        async with connect(nats_config, run) as bus:
            for step in range(STEPS):
                for group in range(2):
                    for sample in range(2):
                        large = 250_000 if (group, sample) == (0, 0) else 20
                        await bus.publish_trajectory(make_trajectory(run, step, group, sample, tokens=large))
                await bus.publish_attempts(Attempts(run, step, "e", 0, ((0, 0, 0),)))
                of = (step, 0) if step < 3 else (2, 1)
                await bus.publish_batch(_batch(run, step, [TrajectoryId(run, *of, sample) for sample in range(2)]))

    asyncio.run(publish())
    return run


async def _release(nats: Nats, run: str, before: int, retain: str, staleness: int = 0) -> None:
    config = Config(run=run, nats=Nats(url=nats.url, retain=retain), rollout=Rollout(max_staleness=staleness))

    def release() -> None:
        with NatsBatches(config) as batches:
            batches.release(before)

    await asyncio.to_thread(release)


async def _objects(bus) -> list[int]:
    return sorted(int(entry.name.split(".")[0]) for entry, _ in await bus._core.claims.all())


@pytest.mark.parametrize(
    ("before", "retain", "staleness", "horizon"),
    [
        (2, "checkpoint", 0, 2),
        (2, "checkpoint", 1, 1),
        (3, "checkpoint", 0, 2),  # a batch that is still needed names trajectories of step 2
        (0, "checkpoint", 0, 0),
        (3, "all", 0, 0),
    ],
)
def test_what_a_restore_needs_is_kept(nats_config, logged, before, retain, staleness, horizon):
    async def scenario():
        for _ in range(2):
            await _release(nats_config, logged, before, retain, staleness)
        async with connect(nats_config, logged) as bus:
            kept = list(range(horizon, STEPS))
            assert await bus.horizon() == horizon
            assert await bus.steps() == kept
            assert await _objects(bus) == kept
            assert [len(await bus.attempts(step)) for step in range(STEPS)] == [int(step in kept) for step in range(4)]
            for step in range(STEPS):
                assert (await bus.batch(step)).step == step, "manifests are the ledger of the whole run"
            for step in kept:
                assert len(await bus.trajectories(step)) == 4

    asyncio.run(scenario())


def test_what_was_purged_is_not_taken_for_lost(nats_config, logged):
    async def scenario():
        await _release(nats_config, logged, 2, "checkpoint")
        async with connect(nats_config, logged) as bus:
            for read_it in (bus.trajectories(1), bus.fetch([TrajectoryId(logged, 0, 0, 0)])):
                with pytest.raises(
                    RecordPurged, match=r"were removed, as nats\.retain: checkpoint says.*from step 2 on"
                ):
                    await read_it
            assert await bus.trajectories(9) == []

    asyncio.run(scenario())


def test_a_purge_cut_short_is_completed_by_the_next(nats_config, logged):
    """Killed before its first removal, before its second, and so on."""

    class Killed(Exception):
        pass

    async def release(allowed: int) -> None:
        async with connect(nats_config, logged) as bus:

            def counted(purge):
                async def removing(subject: str) -> None:
                    nonlocal allowed
                    allowed -= 1
                    if allowed < 0:
                        raise Killed
                    await purge(subject)

                return removing

            for stream in (bus._core.stream, bus._core.claims.stream):
                stream.purge = counted(stream.purge)
            await bus._core.release(2, purge=True)

    async def scenario() -> int:
        kills = 0
        while True:
            try:
                await release(kills)
                break
            except Killed:
                kills += 1
            async with connect(nats_config, logged) as bus:
                assert [len(await bus.trajectories(step)) for step in (2, 3)] == [4, 4]
        async with connect(nats_config, logged) as bus:
            assert await bus.steps() == await _objects(bus) == [2, 3]
            assert {name.split("-")[0] for name in await bus._core.claims.chunk_names()} == {"2", "3"}
        return kills

    assert asyncio.run(scenario()) == 4, "each goes on where the last was killed: 0 + 1 + 2 + 3 removals, then 2"


def test_objects_of_no_trajectory_are_collected_once_nobody_can_still_need_them(nats_config, logged, make_trajectory):
    """What a kill between depositing and publishing leaves: an object, or chunks without an entry."""

    async def scenario():
        async with connect(nats_config, logged) as bus:
            claims = bus._core.claims
            for step in (0, 3):
                await claims.deposit(make_trajectory(logged, step, 7, 7, tokens=250_000))
                await claims.stream.send(claims._chunks(f"{step}-8-8-0-cut"), b"half an object")
            await bus._core.release(3, purge=False)
            assert await _objects(bus) == [0, 0, 1, 2, 3, 3], "not yet: somebody may be about to publish"
            bus._core.retention._settled *= 0
            await bus._core.release(3, purge=False)
            assert await _objects(bus) == [0, 1, 2, 3, 3], "step 3 isn't over"
            assert sum("cut" in name for name in await claims.chunk_names()) == 1
            for step in range(STEPS):
                assert len(await bus.trajectories(step)) == 4

    asyncio.run(scenario())


def test_arrays_of_a_refused_trajectory_are_withdrawn(nats_config, run, make_trajectory):
    async def scenario():
        async with connect(nats_config, run) as bus:
            first = make_trajectory(run, 0, tokens=250_000)
            assert await bus.publish_trajectory(first) is True
            assert await bus.publish_trajectory(make_trajectory(run, 0, tokens=250_001)) is False
            assert await bus.publish_trajectory(first) is False
            assert await bus.trajectories(0) == [first]
            assert len(await _objects(bus)) == 1

    asyncio.run(scenario())


def test_export_begins_where_the_log_does(nats_config, logged, tmp_path):
    async def scenario():
        await _release(nats_config, logged, 2, "checkpoint")
        async with connect(nats_config, logged) as bus:
            await export(bus, tmp_path / "log")
            with pytest.raises(LogError, match=r"steps 1 to 1 were removed.*--first 2"):
                await export(bus, tmp_path / "more", first=1)
            await export(bus, tmp_path / "last", first=3)

    asyncio.run(scenario())
    assert list(read([tmp_path / "log"]).batches) == [2, 3]
    assert list(read([tmp_path / "last"]).batches) == [3], "a file holds all that its batch names"
    done = subprocess.run(
        [VERB, "export", logged, "--out", tmp_path / "verb", "--nats", nats_config.url], capture_output=True, text=True
    )
    assert done.returncode == 0 and "The log begins at step 2" in done.stdout


def test_checking_a_server_makes_no_run(nats_config, run):
    async def scenario():
        await check(nats_config)
        with pytest.raises(RunNotFound, match="A run is made when its bin/learner, bin/actor or bin/rollouts starts"):
            async with connect(nats_config, run, create=False):
                pass

    asyncio.run(scenario())


def test_objects_are_those_of_the_object_store(nats_config, logged):
    """``nats object get`` reads them."""

    async def scenario():
        async with connect(nats_config, logged) as bus:
            [claimed] = [t for t in await bus.trajectories(1, arrays=False) if t.claim]
            store = await bus._core.connection.js.object_store(subjects.objects_bucket(logged))
            found = await store.get(claimed.claim.object)
            assert len(found.data) == claimed.claim.size == found.info.size
            assert found.info.chunks > 1

    asyncio.run(scenario())
