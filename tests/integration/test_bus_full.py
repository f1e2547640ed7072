"""A server that can't store: publishers wait where one can see it, and lose and double nothing."""

from __future__ import annotations

import logging

import pytest
import trio

from protocol import subjects
from protocol.bus import StorageFull, connect
from protocol.config import Nats
from protocol.records import ActorStatus, Batch, Ledger, PolicyVersion, Probe
from protocol.server import NatsServer

pytestmark = pytest.mark.nats


async def _limit(bus, stream: str, max_bytes: int) -> None:
    """Set a stream's bound on bytes; -1 for none."""

    async def change() -> None:
        js = bus._core.connection.js
        info = await js.stream_info(stream)
        await js.update_stream(info.config.evolve(max_bytes=max_bytes))

    await bus._call(change)


async def _publish(bus, trajectories, answers: list) -> None:
    for trajectory in trajectories:
        answers.append((trajectory.id, await bus.publish_trajectory(trajectory)))


async def test_publishers_wait_for_room_and_are_told(nats_server, run, make_trajectory, caplog):
    caplog.set_level(logging.WARNING, "endstate.bus")
    made = [make_trajectory(run, 0, 0, sample, tokens=2000) for sample in range(40)]
    answers: list = []
    with trio.fail_after(60):
        async with connect(Nats(url=nats_server().url, full_wait=50), run) as bus:
            await _limit(bus, subjects.stream(run), 200_000)
            async with trio.open_nursery() as nursery:
                for start in range(4):
                    nursery.start_soon(_publish, bus, made[start::4], answers)
                while not caplog.records:
                    await trio.sleep(0.05)
                stored = len(answers)
                await trio.sleep(1)
                assert len(answers) == stored < 40
                held_up = bus.held_up()
                assert 1 <= held_up < 60, "four wait, and each moment counts once"
                await _limit(bus, subjects.stream(run), -1)
            assert sorted(id for id, _ in answers) == [t.id for t in made] and all(new for _, new in answers)
            assert await bus.trajectories(0) == made
            assert held_up < bus.held_up() == bus.held_up(), "it goes on"
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2, "four publishers wait, one word is enough"
    assert "has no room (maximum bytes exceeded): waiting up to 50 s, nothing is lost. Make room on its disk" in told[0]
    assert "goes on" in told[1]


async def test_at_the_bound_it_says_what_to_do(nats_server, run, make_trajectory):
    """The server's own limit, for all streams."""
    server = nats_server(max_file_store=2_000_000)
    answers: list = []
    with trio.fail_after(60):
        async with connect(Nats(url=server.url, full_wait=1.0), run) as bus:
            with pytest.raises(StorageFull) as refusal:
                await _publish(bus, [make_trajectory(run, 0, 0, n, tokens=5000) for n in range(200)], answers)
            assert [t.id for t in await bus.trajectories(0)] == [id for id, _ in answers], "what was answered is there"
    message = str(refusal.value)
    assert "no room for 1 s (nats.full_wait)" in message
    assert "Make room on its disk, or raise its limit (max_file_store" in message
    assert "run the same command again: what is on the log stays" in message


async def test_every_kind_of_record_waits(nats_server, run, make_trajectory):
    async with connect(Nats(url=nats_server().url, full_wait=50), run) as bus:
        log, actors = subjects.stream(run), f"KV_{subjects.actors_bucket(run)}"
        objects = f"OBJ_{subjects.objects_bucket(run)}"
        for stream in (log, actors, objects):
            await _limit(bus, stream, 1)
        large = make_trajectory(run, 0, tokens=250_000)
        done: list[str] = []

        async def note(name: str, operation, record) -> None:
            assert await operation(record) in (True, None)
            done.append(name)

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(note, "arrays", bus.publish_trajectory, large)
                nursery.start_soon(note, "batch", bus.publish_batch, Batch(run, 0, 0, 2, (), Ledger(0)))
                nursery.start_soon(
                    note, "policy", bus.publish_policy, PolicyVersion(run, 0, "w", {}, Probe(b"", b"", 0.1))
                )
                nursery.start_soon(note, "actor", bus.put_actor, ActorStatus("a", "http://a", "tiny", 0, True))
                await trio.sleep(2)
                assert not done
                for stream in (log, actors, objects):
                    await _limit(bus, stream, -1)
        assert sorted(done) == ["actor", "arrays", "batch", "policy"]
        assert await bus.trajectories(0) == [large]
        chunks = await bus._call(bus._core.claims.chunk_names)
        assert len(chunks) == 1, "the tries that failed left nothing behind"


async def test_a_supervised_server_takes_up_again_once_its_disk_has_room(
    nats_server, run, make_trajectory, monkeypatch
):
    free = [3_000_000]
    monkeypatch.setattr(NatsServer, "_room", lambda self: (free[0], 1_000_000))
    server = nats_server(restart=True)
    answers: list = []
    with trio.fail_after(60):
        async with connect(Nats(url=server.url, full_wait=50), run) as bus:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(
                    _publish, bus, [make_trajectory(run, 0, 0, n, tokens=10_000) for n in range(30)], answers
                )
                while (stored := len(answers)) < 5:
                    await trio.sleep(0.1)
                await trio.sleep(2)
                while len(answers) > stored:
                    stored = len(answers)
                    await trio.sleep(1)
                assert stored < 30
                free[0] = 1_000_000  # Now the disk is seen to be full, and then, to have room.
                await trio.sleep(2.5)
                free[0] = 500_000_000
            assert len(await bus.trajectories(0)) == 30
    assert server.restarts >= 1


def test_the_log_may_take_what_the_disk_has_but_for_a_reserve(tmp_path, monkeypatch):
    monkeypatch.setattr(NatsServer, "_room", lambda self: (1000, 300))
    server = NatsServer(tmp_path, "nats://127.0.0.1:4222")
    assert "max_file_store: 700," in server._configuration()
    (tmp_path / "jetstream").mkdir()
    (tmp_path / "jetstream/1.blk").write_bytes(b"x" * 5000)
    assert "max_file_store: 5700," in server._configuration(), "what is taken already counts"
