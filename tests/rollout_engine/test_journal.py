"""Rules 3 and 12: an attempt is on the log before it starts, and every attempt is in one bucket."""

import pytest
import trio

from protocol.records import Attempts, Ledger, TrajectoryId
from rollout_engine.journal import Journal


class Log:
    """Takes a second a record."""

    def __init__(self, records=()):
        self.records = list(records)

    async def publish_attempts(self, record):
        await trio.sleep(1)
        self.records.append(record)

    async def attempts(self, step):
        return self.records


async def start(journal, group, sample, started):
    id = await journal.start(group, sample)
    started.append((id, trio.current_time()))


async def test_attempts_that_start_together_share_records_and_none_starts_before_its_own(autojump_clock):
    log, started, begin = Log(), [], trio.current_time()
    journal = await Journal.open(log, "r", 3)
    async with trio.open_nursery() as nursery:
        for sample in range(100):
            nursery.start_soon(start, journal, 0, sample, started)
    # The first to ask writes alone or with whoever asked in the same pass; all others share the next record.
    assert len(log.records) <= 2
    assert sorted(a for record in log.records for a in record.started) == [(0, sample, 0) for sample in range(100)]
    written = {a: begin + 1 + i for i, record in enumerate(log.records) for a in record.started}
    assert all(time == written[id.group, id.sample, id.attempt] for id, time in started)
    assert [record.number for record in log.records] == list(range(len(log.records)))


async def test_a_writer_that_is_cancelled_leaves_its_entries_to_the_next(autojump_clock):
    log, started = Log(), []
    journal = await Journal.open(log, "r", 3)
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(0.5):
            await journal.start(0, 0)
        nursery.start_soon(start, journal, 0, 1, started)
    [record] = log.records
    assert record.started == ((0, 0, 0), (0, 1, 0)) and record.number == 1
    assert [id.sample for id, _ in started] == [1]


async def test_errors_ride_with_the_next_start_or_a_flush(autojump_clock):
    log = Log()
    journal = await Journal.open(log, "r", 3)
    first = await journal.start(2, 0)
    journal.fail(first, "user")
    second = await journal.start(2, 0)
    assert second == TrajectoryId("r", 3, 2, 0, 1)
    assert log.records[1].failed == ((2, 0, 0, "user"),) and log.records[1].started == ((2, 0, 1),)
    journal.fail(second, "actor")
    await journal.flush()
    assert log.records[2].failed == ((2, 0, 1, "actor"),)
    await journal.flush()
    assert len(log.records) == 3
    with trio.move_on_after(0.5):
        await journal.start(2, 0)
    await journal.flush()
    assert log.records[3].started == ((2, 0, 2),), "the ledger counts it, so the log must know it"


async def test_whoever_takes_over_counts_what_was_in_flight_as_cancelled(autojump_clock):
    log = Log(
        [
            Attempts("r", 3, "one", 0, started=((0, 0, 0), (0, 1, 0), (4, 0, 0))),
            Attempts("r", 3, "one", 1, started=((0, 1, 1),), failed=((0, 1, 0, "user"),)),
            Attempts("r", 3, "two", 0, started=((0, 1, 2),), failed=((0, 1, 0, "user"),)),
        ]
    )
    journal = await Journal.open(log, "r", 3)
    assert journal.groups == 5
    id = await journal.start(0, 1)
    assert id.attempt == 3, "no number is used twice"
    # (0, 0, 0) and (0, 1, 3) left trajectories; so did (7, 0, 0), whose start nobody has recorded.
    ledger = journal.ledger({(0, 0, 0): "trained", (0, 1, 3): "trained", (7, 0, 0): "surplus"})
    assert ledger == Ledger(7, trained=2, surplus=1, cancelled=3, system_error={"user": 1})


async def test_episodes_carried_over_are_in_the_buckets_and_not_in_started():
    journal = await Journal.open(Log(), "r", 3)
    ledger = journal.ledger({(0, 0, 0): "trained"}, carried=8)
    assert ledger == Ledger(1, trained=9, carried=8)
    with pytest.raises(ValueError, match="1 started, 7 carried over, 9 in buckets"):
        Ledger(1, trained=9, carried=7).check()
