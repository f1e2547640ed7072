from __future__ import annotations

import msgspec
import pytest

from protocol.config import Curation, resolve
from rollout_engine.curation import pool as pools
from rollout_engine.curation.pool import build_pool, load_pool, read_pool, write_pool
from rollout_engine.errors import ConfigurationError
from rollout_engine.evaluation.files import pool_file
from tests.rollout_engine.evaluation.samples import campaign, row, task

SETTINGS = Curation(attempts=8, min_clean=4)
COUNTS = {
    "travel/a/train/0": 0,
    "travel/a/train/1": 3,
    "travel/b/train/0": 4,
    "retail/a/train/0": 6,
    "retail/b/train/0": 8,
}
TASKS = [task(id) for id in COUNTS]


def test_keeps_the_bands_that_teach_and_says_why_not():
    pool = build_pool(TASKS, campaign(COUNTS, 8), SETTINGS, heldout=())
    assert pool.tasks == ["travel/a/train/1", "travel/b/train/0", "retail/a/train/0"]
    assert list(pool.histogram.values()) == [1, 1, 1, 1, 1]
    assert pool.dropped == {"band not kept": 2}
    first, second = pool.candidates[:2]
    assert (first.band, first.kept, first.reason) == ("rarely_solved", False, "band not kept")
    assert (second.clean, second.passes, second.alpha, second.beta) == (8, 3, 3.5, 5.5)
    assert second.masses["difficult"] == pytest.approx(0.540, abs=5e-4)
    assert pool.policy.label == "base"


def test_system_errors_are_no_failures():
    id = "travel/a/train/0"
    rows = [row(id, n, 1.0) for n in range(3)] + [row(id, n, error="actor") for n in range(3, 8)]
    pool = build_pool([task(id)], rows, Curation(min_clean=3, keep=("nearly_always_solved",)), heldout=())
    [candidate] = pool.candidates
    assert (candidate.clean, candidate.passes, candidate.system_errors) == (3, 3, 5)
    assert (candidate.alpha, candidate.beta) == (3.5, 0.5)
    assert candidate.kept


def test_too_few_clean_attempts_and_held_out_tasks_are_left_out():
    rows = campaign({"travel/a/train/0": 4, "travel/a/train/1": 4}, 8) + campaign({"travel/a/train/2": 2}, 3)
    tasks = [task(f"travel/a/train/{n}") for n in range(4)]
    pool = build_pool(tasks, rows, SETTINGS, heldout=["travel/a/train/1"])
    assert pool.tasks == ["travel/a/train/0"]
    assert [candidate.reason for candidate in pool.candidates] == [
        "",
        "held out",
        "too few clean attempts",
        "too few clean attempts",
    ]
    assert sum(pool.histogram.values()) == 1


@pytest.mark.parametrize(
    ("passes", "settings", "advice"),
    [
        (0, SETTINGS, "too weak"),
        (8, SETTINGS, "already solves"),
        (4, Curation(keep=("difficult",)), "add intermediate to curation.keep"),
        (4, Curation(min_clean=9), "raise curation.attempts"),
    ],
)
def test_an_empty_pool_shows_the_histogram_and_the_way_out(passes, settings, advice):
    counts = {id: passes for id in COUNTS}
    with pytest.raises(ConfigurationError) as caught:
        build_pool(TASKS, campaign(counts, 8), settings, heldout=())
    message = str(caught.value)
    assert "no usable task" in message
    assert advice in message
    assert all(band in message for band in pools.BANDS)


def test_refuses_an_unknown_band():
    with pytest.raises(ConfigurationError, match="curation.keep names 'hard'"):
        build_pool(TASKS, [], Curation(keep=("hard",)), heldout=())


def test_refuses_a_probe_of_two_policies_and_doubled_rows():
    two = campaign({"travel/a/train/0": 1}, 1) + campaign({"travel/a/train/1": 1}, 1, label="other")
    with pytest.raises(ConfigurationError, match="mixes 2 policies"):
        build_pool(TASKS, two, SETTINGS, heldout=())
    with pytest.raises(ConfigurationError, match="more than once"):
        build_pool(TASKS, [row(), row()], SETTINGS, heldout=())


def test_the_file_holds_the_pool(tmp_path):
    pool = build_pool(TASKS, campaign(COUNTS, 8), SETTINGS, heldout=())
    write_pool(pool, tmp_path / "new" / "pool.json")
    assert read_pool(tmp_path / "new" / "pool.json") == pool
    assert msgspec.json.decode((tmp_path / "new" / "pool.json").read_bytes())["candidates"][1]["band"] == "difficult"


def test_a_missing_or_broken_file_names_itself(tmp_path):
    with pytest.raises(ConfigurationError, match="pool.json is missing: run bin/probe"):
        read_pool(tmp_path / "pool.json")
    (tmp_path / "pool.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="is not a task pool"):
        read_pool(tmp_path / "pool.json")


def test_training_reads_the_kept_tasks_in_candidate_order(tmp_path, monkeypatch):
    config = resolve({"run": "r", "folder": str(tmp_path)})
    write_pool(build_pool(TASKS, campaign(COUNTS, 8), SETTINGS, heldout=()), pool_file(config))
    monkeypatch.setattr(pools, "training_candidates", lambda _: TASKS)
    assert [task.id for task in load_pool(config)] == ["travel/a/train/1", "travel/b/train/0", "retail/a/train/0"]
    monkeypatch.setattr(pools, "training_candidates", lambda _: TASKS[:2])
    with pytest.raises(ConfigurationError, match="keeps travel/b/train/0, which isn't a candidate"):
        load_pool(config)
