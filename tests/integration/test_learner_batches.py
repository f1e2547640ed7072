"""The learner's input: each step's batch from the log, now or again, with NATS or without."""

from __future__ import annotations

import time

import pytest

from learner.batches import LogBatches, NatsBatches
from protocol.bus import RecordMissing, WaitExpired
from protocol.config import Config, Learner
from protocol.log import LogWriter
from protocol.records import Batch, GroupRecord, Ledger, PolicyVersion, Probe

pytestmark = pytest.mark.nats


@pytest.fixture
def config(run, nats_config) -> Config:
    return Config(run=run, nats=nats_config, learner=Learner(batch_timeout=5.0))


@pytest.fixture
def step_records(run, make_trajectory):
    """A step of three groups of two, the second without variance: (trajectories, batch)."""

    def make(step: int):
        groups = [[make_trajectory(run, step, group, sample) for sample in range(2)] for group in range(3)]
        buckets = ("trained", "zero_variance", "trained")
        # The second sample finished first: the manifest's order, not the arrival's, is what counts.
        records = tuple(
            GroupRecord(number, group[0].task, (group[1].id, group[0].id), (1.0, 0.0), bucket)
            for number, (group, bucket) in enumerate(zip(groups, buckets, strict=True))
        )
        batch = Batch(run, step, step, 2, records, Ledger(6, trained=4, zero_variance=2))
        return [trajectory for group in groups for trajectory in group], batch

    return make


@pytest.fixture
def engine(config):
    """Publishes, as an engine would, from a bus of its own."""
    from protocol.asyncio_bus import AsyncioBus
    from protocol.portal import Portal

    bus = AsyncioBus(config.nats, config.run)
    with Portal() as portal:
        portal.call(bus.open)

        def publish(trajectories, batch) -> None:
            for trajectory in trajectories:
                portal.call(bus.publish_trajectory, trajectory)
            portal.call(bus.publish_batch, batch)

        publish.floor = lambda: portal.call(bus.consumer.floor)
        yield publish
        portal.call(bus.close)


def _trained(batch: Batch) -> list[tuple[int, int]]:
    return [(0, 1), (0, 0), (2, 1), (2, 0)]


def _ids(batch: Batch) -> list:
    return [id for group in batch.groups if group.bucket == "trained" for id in group.trajectories]


def test_a_step_is_delivered_with_its_trained_trajectories_in_manifest_order(config, engine, step_records):
    trajectories, batch = step_records(0)
    engine(trajectories, batch)
    with NatsBatches(config) as batches:
        delivery = batches.next(0)
        read = delivery.fetch(_ids(batch))
    assert delivery.batch == batch
    assert [(t.id.group, t.id.sample) for t in read] == _trained(batch)
    assert all(t.tokens is not None for t in read)


def test_acknowledging_moves_the_consumer_and_a_restored_learner_reads_again(config, engine, step_records):
    for step in range(3):
        engine(*step_records(step))
    floors = [engine.floor()]
    with NatsBatches(config) as batches:
        for step in range(2):
            delivery = batches.next(step)
            delivery.acknowledge()
            floors.append(engine.floor())
        delivery.acknowledge()
    assert floors == [0, 7, 14], "seven records a step"
    with NatsBatches(config) as batches:
        again = batches.next(0)
        again.acknowledge()
        assert again.batch.step == 0
        assert engine.floor() == 14, "nothing is taken back"
        batches.next(2).acknowledge()
        assert engine.floor() == 21


def test_one_acknowledgement_covers_the_steps_before(config, engine, step_records):
    for step in range(3):
        engine(*step_records(step))
    with NatsBatches(config) as batches:
        batches.next(2).acknowledge()
    assert engine.floor() == 21


def test_waiting_for_a_step_is_bounded(run, nats_config):
    config = Config(run=run, nats=nats_config, learner=Learner(batch_timeout=0.2))
    with NatsBatches(config) as batches:
        started = time.monotonic()
        with pytest.raises(WaitExpired, match=r"no batch for step 0 within 0\.2 s"):
            batches.next(0)
    assert time.monotonic() - started < 3


def test_policy_versions_are_announced_once(config):
    version = PolicyVersion(config.run, 1, "weights/1", {}, Probe(b"", b"", 0.05))
    with NatsBatches(config) as batches:
        assert batches.policy() is None
        assert batches.publish(version) is True
        assert batches.publish(version) is False
        assert batches.policy() == version
        batches.emit("update", {"step": 1})


def test_files_give_what_nats_gives(config, engine, step_records, tmp_path):
    trajectories, batch = step_records(4)
    engine(trajectories, batch)
    with LogWriter(tmp_path / "step.jsonl", config.run) as log:
        for record in (*trajectories, batch):
            log.write(record)
    files = LogBatches([tmp_path])
    with NatsBatches(config) as batches:
        live = batches.next(4)
        read = live.fetch(_ids(batch))
    assert (files.run, files.steps) == (config.run, [4])
    kept = files.next(4)
    kept.acknowledge()
    assert (kept.batch, kept.fetch(_ids(batch))) == (live.batch, read)
    with pytest.raises(RecordMissing, match="no batch for step 5"):
        files.next(5)
