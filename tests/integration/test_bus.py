"""The bus over a real NATS server, the same under trio and under asyncio."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable

import msgspec
import nats
import pytest
import trio

from protocol import subjects
from protocol.bus import RecordDamaged, RecordMissing, RunNotFound, WaitExpired, connect
from protocol.log import LogError, export, read
from protocol.records import ActorStatus, Batch, Event, GroupRecord, Ledger, PolicyVersion, Probe, decode
from protocol.stream import header_size, publish_headers

pytestmark = pytest.mark.nats


@pytest.fixture(params=["trio", "asyncio"])
def go(request) -> Callable[[Callable[[], Awaitable[None]]], None]:
    """Run an async function to its end under either library, within a minute."""

    async def bounded_trio(scenario):
        with trio.fail_after(60):
            await scenario()

    async def bounded_asyncio(scenario):
        async with asyncio.timeout(60):
            await scenario()

    if request.param == "trio":
        return lambda scenario: trio.run(bounded_trio, scenario)
    return lambda scenario: asyncio.run(bounded_asyncio(scenario))


def _policy(run: str, version: int) -> PolicyVersion:
    return PolicyVersion(run, version, f"weights/{version}", {}, Probe(b"", b"", 0.05))


def _batch(trajectories, bucket="trained") -> Batch:
    first = trajectories[0]
    group = GroupRecord(
        first.id.group, first.task, tuple(t.id for t in trajectories), tuple(t.reward for t in trajectories), bucket
    )
    count = len(trajectories)
    return Batch(first.id.run, first.id.step, first.id.step, count, (group,), Ledger(count, trained=count))


def test_a_trajectory_is_published_once(go, nats_config, run, make_trajectory):
    async def scenario():
        trajectory = make_trajectory(run)
        async with connect(nats_config, run) as bus:
            assert await bus.publish_trajectory(trajectory) is True
            assert await bus.publish_trajectory(trajectory) is False
            other = msgspec.structs.replace(trajectory, id=msgspec.structs.replace(trajectory.id, attempt=1), seed=9)
            assert await bus.publish_trajectory(other) is False, "one place holds one trajectory, whatever its attempt"
        async with connect(nats_config, run) as bus:
            assert await bus.publish_trajectory(trajectory) is False, "another connection changes nothing either"
            assert await bus.trajectories(0) == [trajectory]
            with pytest.raises(RecordMissing, match=f"{run}/0/0/0/0 in the place of trajectory {run}/0/0/0/1"):
                await bus.fetch([other.id])

    go(scenario)


def test_refusal_outlives_the_duplicate_window(go, nats_config, run, make_trajectory):
    """The server forgets message ids; without the window only the expected sequence is left to refuse."""

    async def scenario():
        async with connect(nats_config, run) as bus:
            trajectory = make_trajectory(run)
            stream = bus._core.stream
            data = msgspec.json.encode(trajectory)
            place = subjects.trajectory(trajectory.id)
            assert await bus._call(stream.publish, place, data, "one id", 0) is not None
            assert await bus._call(stream.publish, place, data, "an id never seen", 0) is None
            assert await bus.publish_trajectory(trajectory) is False

    go(scenario)


def test_trajectories_and_fetch_keep_their_orders(go, nats_config, run, make_trajectory):
    async def scenario():
        ids = [(group, sample) for group in (11, 2) for sample in (1, 0)]
        made = {place: make_trajectory(run, 4, *place) for place in ids}
        async with connect(nats_config, run) as bus:
            for trajectory in made.values():
                await bus.publish_trajectory(trajectory)
            await bus.publish_trajectory(make_trajectory(run, 5))
            assert [(t.id.group, t.id.sample) for t in await bus.trajectories(4)] == [(2, 0), (2, 1), (11, 0), (11, 1)]
            wanted = [made[place] for place in ids]
            assert await bus.fetch([t.id for t in wanted]) == wanted
            assert await bus.steps() == [4, 5]
            assert await bus.trajectories(6) == []

    go(scenario)


def test_more_than_a_page_is_read(go, nats_config, run, make_trajectory):
    async def scenario():
        async with connect(nats_config, run) as bus:
            for sample in range(150):
                await bus.publish_trajectory(make_trajectory(run, 0, 0, sample))
            assert [t.id.sample for t in await bus.trajectories(0)] == list(range(150))

    go(scenario)


@pytest.mark.parametrize("tokens", [133_000, 250_000])
def test_arrays_too_large_for_a_message_are_checked_in_and_out(go, nats_config, run, make_trajectory, tokens):
    """133k tokens are the longest episode of the published run; the server's ``max_payload`` is its default, 1 MiB."""

    async def scenario():
        large = make_trajectory(run, tokens=tokens)
        async with connect(nats_config, run) as bus:
            assert await bus.publish_trajectory(large) is True
            assert await bus.publish_trajectory(large) is False
            [kept] = await bus.trajectories(0, arrays=False)
            assert kept.tokens is None
            assert kept.claim.size > 1_048_576 == bus._core.connection.client.max_payload
            assert await bus.trajectories(0) == [large]
            assert await bus.fetch([large.id]) == [large]

    go(scenario)


@pytest.mark.parametrize("fault", ["changed", "missing"])
def test_damaged_arrays_are_never_handed_out(go, nats_config, run, make_trajectory, fault):
    async def scenario():
        async with connect(nats_config, run) as bus:
            await bus.publish_trajectory(make_trajectory(run, tokens=250_000))
            [kept] = await bus.trajectories(0, arrays=False)

            async def damage():
                js = bus._core.connection.js
                store = await js.object_store(subjects.objects_bucket(run))
                if fault == "changed":
                    await store.put(kept.claim.object, b"\0" * kept.claim.size)
                else:
                    await js.purge_stream(f"OBJ_{subjects.objects_bucket(run)}")

            await bus._call(damage)
            with pytest.raises(RecordDamaged, match=f"arrays of trajectory {run}/0/0/0/0"):
                await bus.fetch([kept.id])

    go(scenario)


def test_max_payload_counts_the_headers(go, nats_config, run, make_trajectory):
    """At every size around the limit the trajectory arrives, as a whole message or by claim check."""

    async def scenario():
        async with connect(nats_config, run) as bus:
            limit = bus._core.connection.client.max_payload
            bare = make_trajectory(run, 0, 0, 0)
            room = limit - len(msgspec.json.encode(bare)) - header_size(publish_headers(str(bare.id), 0))
            for sample, excess in enumerate((-1, 0, 1)):
                padded = make_trajectory(run, 0, 0, sample, actor="x" * (room + excess - len('"actor":"",')))
                assert await bus.publish_trajectory(padded) is True
            inline = [t.claim is None for t in await bus.trajectories(0, arrays=False)]
            assert inline == [True, True, False]

    go(scenario)


def test_batches_once_and_by_step(go, nats_config, run, make_trajectory):
    async def scenario():
        batch = _batch([make_trajectory(run, 2, 0, sample) for sample in range(2)])
        async with connect(nats_config, run) as bus:
            assert await bus.batch(2) is None
            assert await bus.publish_batch(batch) is True
            assert await bus.publish_batch(msgspec.structs.replace(batch, seconds=9.0)) is False
            assert await bus.batch(2) == batch
            with pytest.raises(WaitExpired, match=r"no batch for step 3 within 0\.1 s"):
                await bus.wait_batch(3, 0.1)

    go(scenario)


def test_policy_versions_only_go_up(go, nats_config, run):
    async def scenario():
        async with connect(nats_config, run) as bus:
            assert await bus.policy() is None
            assert await bus.publish_policy(_policy(run, 0)) is True
            assert await bus.publish_policy(_policy(run, 2)) is True
            assert await bus.publish_policy(_policy(run, 2)) is False
            assert await bus.publish_policy(_policy(run, 1)) is False
            assert await bus.policy() == _policy(run, 2)
            assert [version.version for version in await bus.policies()] == [0, 2]
            assert await bus.wait_policy(1) == _policy(run, 2)
            with pytest.raises(WaitExpired, match=r"no policy version 3 within 0\.1 s"):
                await bus.wait_policy(3, 0.1)

    go(scenario)


async def test_a_waiting_engine_hears_of_a_policy_at_once(nats_config, run):
    async with connect(nats_config, run) as learner, connect(nats_config, run) as engine:
        heard: list[float] = []

        async def wait() -> None:
            await engine.wait_policy(7, 20)
            heard.append(time.monotonic())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.sleep(1.5)
            await learner.publish_policy(_policy(run, 7))
            published = time.monotonic()
    assert heard[0] - published < 0.5


async def test_racing_learners_agree_on_one_policy(nats_config, run):
    async with connect(nats_config, run) as one, connect(nats_config, run) as other:
        won: list[bool] = []

        async def publish(bus) -> None:
            won.append(await bus.publish_policy(_policy(run, 1)))

        async with trio.open_nursery() as nursery:
            for bus in (one, other) * 4:
                nursery.start_soon(publish, bus)
        assert won.count(True) == 1
        assert [version.version for version in await one.policies()] == [1]


def test_actors_register_and_beat(go, nats_config, run):
    async def scenario():
        async with connect(nats_config, run) as bus:
            assert await bus.actors() == []
            for beat in range(3):
                await bus.put_actor(ActorStatus("b", "http://b", "tiny", beat, True, time=float(beat)))
            await bus.put_actor(ActorStatus("a", "http://a", "tiny", 0, False))
            assert [(actor.id, actor.version) for actor in await bus.actors()] == [("a", 0), ("b", 2)]
            # An actor's own clock counts for nothing: both have just been heard of.
            assert [actor.time for actor in await bus.actors()] == pytest.approx([time.time()] * 2, abs=5)
            with pytest.raises(ValueError, match="actor id 'a b' can't be a key"):
                await bus.put_actor(ActorStatus("a b", "http://a", "tiny", 0, False))

    go(scenario)


def test_a_plain_subscription_reads_json_that_people_can_read(nats_url, nats_config, run, make_trajectory):
    """What ``nats sub 'endstate.RUN.>'`` shows."""

    async def scenario():
        client = await nats.connect(nats_url)
        seen = await client.subscribe(f"endstate.{run}.trajectories.>")
        events = await client.subscribe(f"endstate.{run}.events.*")
        await client.flush()
        async with connect(nats_config, run) as bus:
            await bus.publish_trajectory(make_trajectory(run, 3, 1, 2))
            await bus.emit("progress", {"done": 5})
        message = await seen.next_msg(5)
        event = decode((await events.next_msg(5)).data, Event)
        await client.close()
        return message, event

    message, event = asyncio.run(scenario())
    assert message.subject == f"endstate.{run}.trajectories.3.1.2"
    shown = json.loads(message.data)
    assert shown["messages"][1]["calls"] == [{"name": "find", "arguments": {"booking": "B7"}}]
    assert shown["messages"][0]["content"] == "Grüezi, refund my booking"
    assert shown["verdict"] == {"reward": 0.0, "reasons": ["payments: wrong amount"]}
    assert "Grüezi".encode() in message.data, "text is not escaped"
    assert isinstance(shown["tokens"]["ids"], str)
    assert (event.kind, event.data) == ("progress", {"done": 5})


def test_cancelling_a_wait_leaves_a_working_bus(nats_config, run, make_trajectory):
    async def under_trio():
        async with connect(nats_config, run) as bus:
            with trio.move_on_after(0.2) as scope:
                await bus.wait_policy(1)
            assert scope.cancelled_caught
            assert await bus.publish_trajectory(make_trajectory(run)) is True

    started = time.monotonic()
    trio.run(under_trio)
    assert time.monotonic() - started < 5


def test_a_run_that_is_not_there_is_not_created_for_a_reader(go, nats_config, run):
    async def scenario():
        for _ in range(2):
            with pytest.raises(RunNotFound, match=f"holds no run '{run}'"):
                async with connect(nats_config, run, create=False):
                    pass

    go(scenario)


def test_a_record_of_another_run_is_refused(go, nats_config, run, make_trajectory):
    async def scenario():
        async with connect(nats_config, run) as bus:
            with pytest.raises(ValueError, match=f"run 'other' given to the bus of run '{run}'"):
                await bus.publish_trajectory(make_trajectory("other"))

    go(scenario)


def test_export_and_read_give_back_the_run(go, nats_config, run, make_trajectory, tmp_path):
    async def scenario():
        steps = {step: [make_trajectory(run, step, 0, sample) for sample in range(2)] for step in range(3)}
        steps[1].append(make_trajectory(run, 1, 0, 2, tokens=250_000))
        async with connect(nats_config, run) as bus:
            for made in steps.values():
                for trajectory in made:
                    await bus.publish_trajectory(trajectory)
                await bus.publish_batch(_batch(made))
            await bus.publish_policy(_policy(run, 0))
            written = await export(bus, tmp_path / "all")
            await export(bus, tmp_path / "some", first=1, last=1)
        assert [path.name for path in written] == [f"step-00000{n}.jsonl" for n in range(3)] + ["policies.jsonl"]
        log = read([tmp_path / "all"])
        assert log.run == run
        assert log.batches == {step: _batch(made) for step, made in steps.items()}
        assert list(log.trajectories.values()) == [t for made in steps.values() for t in made]
        assert log.policies == {0: _policy(run, 0)}
        assert list(read([tmp_path / "some"]).batches) == [1]
        with pytest.raises(LogError):
            read([tmp_path / "none"])

    go(scenario)


def test_a_step_that_trained_on_carried_groups_alone_is_exported(go, nats_config, run, make_trajectory, tmp_path):
    async def scenario():
        made = [make_trajectory(run, 0, 0, sample) for sample in range(2)]
        carried = msgspec.structs.replace(_batch(made), step=1)
        async with connect(nats_config, run) as bus:
            for trajectory in made:
                await bus.publish_trajectory(trajectory)
            await bus.publish_batch(_batch(made))
            await bus.publish_batch(carried)
            assert await bus.steps() == [0]
            assert await bus.batch_steps() == [0, 1]
            await export(bus, tmp_path / "all")
            await export(bus, tmp_path / "second", first=1)
        assert list(read([tmp_path / "all"]).batches) == [0, 1]
        second = read([tmp_path / "second"])
        assert second.batches == {1: carried}
        assert list(second.trajectories.values()) == made

    go(scenario)
