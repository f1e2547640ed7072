from __future__ import annotations

import msgspec
import pytest
from rich.console import Console

from rollout_engine.evaluation.report import build_report, campaign_figures, write_report
from rollout_engine.evaluation.tables import (
    campaign_table,
    family_table,
    headline_rows,
    headline_table,
    histogram_table,
)
from tests.rollout_engine.evaluation.samples import campaign

BEFORE = {"travel/a/heldout/0": 8, "travel/b/heldout/0": 4, "retail/a/heldout/0": 0, "retail/c/heldout/0": 4}
AFTER = {"travel/a/heldout/0": 8, "travel/b/heldout/0": 8, "retail/a/heldout/0": 8, "retail/c/heldout/0": 1}
SECONDS = {"probe": 1.5, "train": 60.0}


def made(before=BEFORE, after=AFTER):
    return build_report("quickstart", campaign(before, 8), campaign(after, 8, "trained"), SECONDS, token_price=1.0)


def text(table) -> str:
    console = Console(width=140, record=True, file=open("/dev/null", "w"))
    console.print(table)
    return console.export_text()


def test_the_file_has_the_agreed_figures(tmp_path):
    write_report(made(), tmp_path / "report.json")
    report = msgspec.json.decode((tmp_path / "report.json").read_bytes())
    base, trained = report["base"], report["trained"]
    assert (base["tasks"], base["attempts"], base["attempts_per_task"]) == (4, 32, 8)
    assert (base["pass_at_1"], trained["pass_at_1"]) == (0.5, 25 / 32)
    assert (base["pass_at_k"], trained["pass_at_k"]) == (0.75, 1.0)
    assert (base["observed_all"], trained["observed_all"]) == (1, 3)
    assert (base["observed_all_share"], trained["observed_all_share"]) == (0.25, 0.75)
    assert (base["tokens_per_success"], trained["tokens_per_success"]) == (200.0, 128.0)
    assert trained["tokens_per_reliable_task"] == pytest.approx(3200 / 3)
    assert report["seconds"] == SECONDS
    assert (base["policy"]["label"], trained["policy"]["label"]) == ("base", "trained")
    assert report["change"]["observed_all_factor"] == 3.0


def test_families_carry_both_sides_and_the_fallen_are_named():
    report = made()
    assert list(report["families"]) == ["retail/a", "retail/c", "travel/a", "travel/b"]
    assert report["families"]["travel/b"]["base"]["pass_at_1"] == 0.5
    assert report["families"]["travel/b"]["trained"]["pass_at_1"] == 1.0
    assert report["families"]["retail/a"]["base"]["tokens_per_success"] is None
    [fall] = report["families_fallen"]
    assert fall == {
        "family": "retail/c", "tasks": 1, "base": 0.5, "trained": 0.125, "change": -0.375, "under_half": True,
    }  # fmt: skip
    assert report["base"]["domains"]["travel"] == {
        "tasks": 2, "pass_at_1": 0.75, "pass_at_k": 1.0, "observed_all": 1, "tokens_per_success": 1600 / 12,
    }  # fmt: skip


def test_the_headline_reads_as_published():
    assert headline_rows(made()) == [
        ("pass@1", "50.0 %", "78.1 %", "+28.1 points"),
        ("pass@8", "75.0 %", "100.0 %", "+25.0 points"),
        ("observed 8/8", "1 (25.0 %)", "3 (75.0 %)", "×3.00"),
        ("tokens per success", "200", "128", "−36 %"),
        ("tokens per reliable task", "3\u202f200", "1\u202f067", "−67 %"),
    ]


def test_a_policy_that_is_never_reliable_has_a_dash_not_a_zero():
    rows = {name: row for name, *row in headline_rows(made(before=dict.fromkeys(BEFORE, 0)))}
    assert rows["observed 8/8"] == ["0 (0.0 %)", "3 (75.0 %)", "+3 tasks"]
    assert rows["tokens per reliable task"] == ["–", "1\u202f067", "–"]
    assert rows["tokens per success"] == ["–", "128", "–"]


def test_the_family_table_marks_those_that_fell():
    lines = text(family_table(made(after={**AFTER, "travel/a/heldout/0": 7}))).splitlines()
    [halved] = [line for line in lines if "retail/c" in line]
    [fell] = [line for line in lines if "travel/a" in line]
    [rose] = [line for line in lines if "travel/b" in line]
    assert "fell under half" in halved and "50.0 →  12.5" in halved and "−37.5" in halved
    assert "fell" in fell and "under half" not in fell
    assert "fell" not in rose
    assert lines.index(halved) < lines.index(fell) < lines.index(rose)


def test_the_tables_print():
    assert "quickstart: 4 held-out tasks × 8 attempts" in text(headline_table(made()))
    assert "50.0 %" in text(campaign_table(campaign_figures(campaign(BEFORE, 8), 1.0)))
    shown = text(histogram_table({"difficult": 10, "intermediate": 5}, {"difficult": 9}, ("difficult",)))
    assert "█" * 40 in shown and "█" * 20 in shown


def test_whose_ranking_a_knowledge_search_had_is_said():
    rows = [msgspec.structs.replace(row, ranking="embedded") for row in campaign(BEFORE, 8)]
    figures = campaign_figures(rows, 1.0)
    assert figures["rankings"] == ["embedded"]
    assert "ranking of the knowledge search: embedded" in text(campaign_table(figures))
    report = build_report("r", rows, rows, SECONDS, 1.0)
    assert text(headline_table(report)).count("embedded") == 1
    assert "ranking" not in text(headline_table(made()))
