from __future__ import annotations

import msgspec
import pytest

from rollout_engine.errors import ConfigurationError
from rollout_engine.evaluation.attempts import AttemptFile, PolicyStamp, duplicates, read_rows, weights_digest
from tests.rollout_engine.evaluation.samples import row

BASE = PolicyStamp("base", 0)


def write(path, *rows, tail=b""):
    path.write_bytes(b"".join(msgspec.json.encode(r) + b"\n" for r in rows) + tail)


def test_each_row_is_on_disk_as_soon_as_it_is_appended(tmp_path):
    path = tmp_path / "new" / "rows.jsonl"
    with AttemptFile(path, BASE) as file:
        file.append(row(attempt=0))
        assert read_rows(path) == [row(attempt=0)]
        file.append(row(attempt=1, error="actor"))
        assert file.done == {("travel/refund/train/0", 0)}
    assert [r.error is None for r in read_rows(path)] == [True, False]


def test_reopening_keeps_good_rows_and_drops_errors_and_a_cut_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    write(path, row(attempt=0), row(attempt=1, error="actor"), row(attempt=2, reward=0.0), tail=b'{"task": "trav')
    with AttemptFile(path, BASE) as file:
        assert file.done == {("travel/refund/train/0", 0), ("travel/refund/train/0", 2)}
        file.append(row(attempt=1))
    assert [r.attempt for r in read_rows(path)] == [0, 2, 1]


def test_a_last_line_without_its_newline_is_dropped_even_when_it_parses(tmp_path):
    path = tmp_path / "rows.jsonl"
    write(path, row(attempt=0), tail=msgspec.json.encode(row(attempt=1)))
    assert [r.attempt for r in read_rows(path)] == [0]


@pytest.mark.parametrize(
    "line",
    [b"not json", b"{}", b"", msgspec.json.encode({**msgspec.to_builtins(row()), "reward": None})],
    ids=["text", "fields", "blank", "neither reward nor error"],
)
def test_any_other_corruption_names_file_and_line(tmp_path, line):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(msgspec.json.encode(row()) + b"\n" + line + b"\n" + msgspec.json.encode(row()) + b"\n")
    with pytest.raises(ConfigurationError, match=r"rows\.jsonl, line 2 is not an attempt"):
        read_rows(path)


def test_duplicates_are_found_and_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    write(path, row(attempt=0), row(attempt=1), row(attempt=0))
    assert duplicates(read_rows(path)) == [("travel/refund/train/0", 0)]
    with pytest.raises(ConfigurationError, match="travel/refund/train/0 attempt 0"):
        AttemptFile(path, BASE)


@pytest.mark.parametrize("policy", [PolicyStamp("trained", 0), PolicyStamp("base", 1), PolicyStamp("base", 0, "beef")])
def test_a_file_is_continued_with_its_own_policy_only(tmp_path, policy):
    path = tmp_path / "rows.jsonl"
    write(path, msgspec.structs.replace(row(), policy=PolicyStamp("base", 0, "cafe")))
    before = path.read_bytes()
    with pytest.raises(ConfigurationError, match=r"holds attempts of policy 'base' \(version 0, weights cafe\)"):
        AttemptFile(path, policy)
    assert path.read_bytes() == before


def test_a_missing_file_has_no_rows(tmp_path):
    assert read_rows(tmp_path / "none.jsonl") == []


def test_a_partial_reward_is_no_pass():
    assert not row(reward=0.5).passed
    assert row(reward=1.0).passed


def test_the_digest_follows_the_weights(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"one")
    first = weights_digest(tmp_path)
    assert len(first) == 16
    (tmp_path / "config.json").write_text("{}")
    assert weights_digest(tmp_path) == first
    (tmp_path / "model.safetensors").write_bytes(b"two")
    assert weights_digest(tmp_path) != first
    with pytest.raises(ConfigurationError, match="no .*safetensors"):
        weights_digest(tmp_path / "elsewhere")
