from __future__ import annotations

import pytest

from rollout_engine.errors import ConfigurationError
from rollout_engine.evaluation.transcripts import choose_failures, open_transcripts, read_transcripts, write_transcript
from tests.rollout_engine.evaluation.samples import campaign, row, trajectory

KEY = ("travel/refund/heldout/0", 0)


def test_a_transcript_comes_back_whole(tmp_path):
    path = tmp_path / "base.transcripts.jsonl"
    kept = trajectory(*KEY, reward=0.0)
    with open_transcripts(path) as stream:
        write_transcript(stream, KEY, kept)
    [found] = read_transcripts(path, [("absent", 3), KEY])
    assert (found.task, found.attempt, found.trajectory) == (*KEY, kept)


def test_a_cut_line_is_dropped_before_more_is_written(tmp_path):
    path = tmp_path / "base.transcripts.jsonl"
    with open_transcripts(path) as stream:
        write_transcript(stream, KEY, trajectory(*KEY, reward=0.0))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:40])
    with open_transcripts(path) as stream:
        write_transcript(stream, KEY, trajectory(*KEY, reward=1.0))
    assert path.read_bytes().startswith(whole)
    # Of two lines of one key the later counts.
    assert [item.trajectory.reward for item in read_transcripts(path, [KEY])] == [1.0]


def test_a_file_of_only_a_cut_line_starts_over(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"task"')
    with open_transcripts(path):
        pass
    assert path.read_bytes() == b""


def test_corruption_names_file_and_line(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"{}\n")
    with pytest.raises(ConfigurationError, match=r"t\.jsonl, line 1 is not a transcript"):
        read_transcripts(path, [KEY])


def test_no_file_no_transcripts(tmp_path):
    assert read_transcripts(tmp_path / "none.jsonl", [KEY]) == []


def test_fallen_families_come_first_then_the_most_frequent():
    rows = campaign(
        {"travel/a/heldout/0": 3, "travel/b/heldout/0": 0, "travel/b/heldout/1": 4, "retail/c/heldout/0": 2}, 4
    )
    rows.append(row("retail/d/heldout/0", error="actor"))
    chosen = choose_failures(rows, {"travel/a"})
    assert chosen == [("travel/a/heldout/0", 3), ("travel/b/heldout/0", 0), ("retail/c/heldout/0", 2)]
    assert choose_failures(rows, {"travel/a"}, limit=1) == chosen[:1]
