"""Exported logs: what is read is what was written, or a refusal that names file and line."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.log import LogError, LogWriter, export, files, read, scan, verify
from protocol.records import Batch, GroupRecord, Ledger, PolicyVersion, Probe


@pytest.fixture(scope="module")
def records(make_trajectory):
    first, second = (make_trajectory("demo", 3, 0, sample, tokens=6) for sample in range(2))
    group = GroupRecord(0, first.task, (first.id, second.id), (0.0, 0.0), "trained")
    return [first, second, Batch("demo", 3, 3, 2, (group,), Ledger(2, trained=2))]


@pytest.fixture(scope="module")
def file(tmp_path_factory, records) -> Path:
    path = tmp_path_factory.mktemp("log") / "step-000003.jsonl"
    with LogWriter(path, "demo") as log:
        for record in records:
            log.write(record)
    return path


def _changed(file: Path, tmp_path_factory, data: bytes) -> Path:
    path = tmp_path_factory.mktemp("changed") / file.name
    path.write_bytes(data)
    return path


def test_what_was_written_is_read(file, records):
    log = read([file])
    assert log.run == "demo"
    assert log.batches == {3: records[2]}
    assert log.trajectories == {record.id: record for record in records[:2]}
    assert [number for number, _ in scan(file)] == [1, 2, 3, 4]
    assert verify([file.parent])[0].counts == {"trajectory": 2, "batch": 1, "policy": 0, "origin": 0}


def test_every_line_is_plain_json_with_readable_fields(file):
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["log", "trajectory", "trajectory", "batch", "end"]
    assert lines[1]["record"]["messages"][0] == {"role": "user", "content": "Grüezi, refund my booking"}
    assert lines[-1]["record"] == {"records": 3}


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_no_byte_changes_unseen(file, tmp_path_factory, data):
    content = bytearray(file.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    changed = _changed(file, tmp_path_factory, bytes(content))
    line = file.read_bytes()[:at].count(b"\n") + 1
    # A byte changed into a newline, or a newline into something else, is told of at that line too.
    with pytest.raises(LogError, match=rf"{changed}:{line}: .*export the run again"):
        read([changed])


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_no_cut_goes_unseen(file, tmp_path_factory, data):
    content = file.read_bytes()
    cut = content[: data.draw(st.integers(0, len(content) - 1))]
    changed = _changed(file, tmp_path_factory, cut)
    line = cut.count(b"\n") + 1
    with pytest.raises(LogError, match=f"{changed}:{line}: .*cut off"):
        read([changed])


@pytest.mark.parametrize(
    ("order", "line"),
    [((0, 2, 3, 4), 2), ((0, 1, 1, 2, 3, 4), 3), ((0, 2, 1, 3, 4), 2), ((1, 2, 3, 4), 1), ((0, 1, 2, 3, 4, 1), 6)],
    ids=["lost", "doubled", "moved", "headless", "after the end"],
)
def test_lines_are_chained(file, tmp_path_factory, order, line):
    lines = file.read_bytes().splitlines(keepends=True)
    changed = _changed(file, tmp_path_factory, b"".join(lines[index] for index in order))
    with pytest.raises(LogError, match=f"{changed}:{line}: "):
        verify([changed])


def test_a_failed_write_leaves_no_file(tmp_path, records):
    with pytest.raises(RuntimeError), LogWriter(tmp_path / "a.jsonl", "demo") as log:
        log.write(records[0])
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_a_batch_without_its_trajectories_is_refused(tmp_path, records):
    with LogWriter(tmp_path / "a.jsonl", "demo") as log:
        log.write(records[0])
        log.write(records[2])
    with pytest.raises(LogError, match=r"a\.jsonl:3: the batch names trajectory demo/3/0/1/0, which no file holds"):
        read([tmp_path])


def test_files_of_two_runs_are_refused(tmp_path, make_trajectory):
    for run in ("one", "two"):
        with LogWriter(tmp_path / f"{run}.jsonl", run) as log:
            log.write(make_trajectory(run))
    with pytest.raises(LogError, match=r"two\.jsonl:1: of run 'two', but .*one\.jsonl is of run 'one'"):
        read([tmp_path])


def test_contradicting_files_are_refused_and_agreeing_ones_are_not(tmp_path, make_trajectory):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        with LogWriter(tmp_path / f"{name}.jsonl", "demo") as log:
            log.write(make_trajectory("demo", seed=seed))
    assert len(read([tmp_path / "a.jsonl", tmp_path / "b.jsonl"]).trajectories) == 1
    with pytest.raises(LogError, match=r"c\.jsonl:2: demo/0/0/0/0 differs"):
        read([tmp_path])


def test_policies_are_kept(tmp_path):
    version = PolicyVersion("demo", 4, "weights/4", {"model.safetensors": "ab"}, Probe(b"", b"", 0.05))
    with LogWriter(tmp_path / "policies.jsonl", "demo") as log:
        log.write(version)
    assert read([tmp_path]).policies == {4: version}


def test_nothing_to_read_is_an_error(tmp_path):
    with pytest.raises(LogError, match="no log files in"):
        files([tmp_path])
    with pytest.raises(LogError, match="absent.jsonl: cannot be read"):
        read([tmp_path / "absent.jsonl"])


def test_a_step_that_ends_while_it_is_exported_is_whole_or_without_its_batch(tmp_path, make_trajectory):
    """Each call finds two records more than the one before, the manifest at last."""

    class Live:
        run = "run"

        def __init__(self, there):
            self.there = there
            made = [make_trajectory("run", 0, 0, sample) for sample in range(3)]
            ids, rewards = tuple(t.id for t in made), tuple(t.reward for t in made)
            group = GroupRecord(0, made[0].task, ids, rewards, "trained")
            self.records = [*made, Batch("run", 0, 0, 3, (group,), Ledger(3, trained=3))]

        def found(self):
            self.there += 2
            return self.records[: max(0, self.there)]

        async def horizon(self):
            return 0

        async def origin(self):
            return None

        async def policies(self):
            return []

        async def steps(self):
            return [0]

        async def batch_steps(self):
            return [0] if self.found()[3:] else []

        async def trajectories(self, step):
            return self.found()[:3]

        async def batch(self, step):
            return next(iter(self.found()[3:]), None)

        async def fetch(self, ids):
            assert not ids
            return []

    for there in range(-4, 3):
        folder = tmp_path / str(there)
        asyncio.run(export(Live(there), folder))
        verify(files([folder]))
        assert len(read(files([folder])).batches) == (there >= 0)
