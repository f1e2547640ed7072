from __future__ import annotations

import base64
import re
from xml.etree import ElementTree

import pytest

from protocol.config import Curation
from rollout_engine.curation.pool import build_pool
from rollout_engine.errors import ConfigurationError
from rollout_engine.evaluation.page import PageInputs, render_page
from rollout_engine.evaluation.report import build_report
from rollout_engine.evaluation.training import curves, ledger_rows, read_metrics
from rollout_engine.evaluation.transcripts import Transcript
from tests.rollout_engine.evaluation.samples import batch, campaign, task, trajectory

BEFORE = {"travel/a/heldout/0": 8, "travel/b/heldout/0": 4, "retail/a/heldout/0": 0}
AFTER = {"travel/a/heldout/0": 6, "travel/b/heldout/0": 8, "retail/a/heldout/0": 8}
REPORT = build_report("demo", campaign(BEFORE, 8), campaign(AFTER, 8, "trained"), {"train": 60.0}, 1.0)
BATCHES = [batch(1, [[1.0, 1.0], [0.0, 1.0], [1.0, 0.0]]), batch(0, [[0.0, 1.0], [0.0, 0.0]])]
METRICS = [
    {"step": 0, "reward_mean": 0.25, "groups": 2.0, "informative_groups": 1.0, "sampled_mean": 40.0, "entropy": 0.5},
    {"step": 1, "reward_mean": 0.5, "groups": 0.0, "informative_groups": 0.0, "sampled_mean": 41.0},
]


def render() -> str:
    counts = {"travel/a/train/0": 3, "travel/a/train/1": 8}
    pool = build_pool([task(id) for id in counts], campaign(counts, 8), Curation(), heldout=())
    failed = ("travel/a/heldout/0", 7)
    failures = [Transcript(*failed, trajectory(*failed, reward=0.0))]
    return render_page(PageInputs(REPORT, "f00d", pool, METRICS, BATCHES, failures))


@pytest.fixture(scope="module")
def page() -> str:
    return render()


def test_the_page_needs_nothing_beside_itself(page):
    assert re.findall(r'(?:src|href)="(?!data:)', page) == []
    pictures = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', page)
    assert len(pictures) == 7
    for picture in pictures:
        assert ElementTree.fromstring(base64.b64decode(picture)).tag == "{http://www.w3.org/2000/svg}svg"


def test_the_page_shows_failures_with_their_database_diff(page):
    assert "travel/a from 100.0 % to 75.0 %" in page
    assert "bookings BK1: wrong status" in page
    assert "{&#34;status&#34;: &#34;refunded&#34;}" in page
    assert "{&#34;status&#34;: &#34;cancelled&#34;}" in page
    assert "get_booking({&#34;id&#34;: &#34;BK1&#34;})" in page
    assert "Please refund &lt;b&gt;BK1&lt;/b&gt;" in page
    assert "policy text" not in page


def test_the_same_inputs_give_the_same_page(page):
    assert render() == page


def test_parts_without_data_say_so():
    report = build_report("demo", campaign(BEFORE, 8), campaign(BEFORE, 8, "trained"), {}, 1.0)
    page = render_page(PageInputs(report))
    for words in (
        "No learner metrics",
        "No logged batches",
        "No pool.json",
        "No stage times",
        "No transcript",
        "None of the 3 families fell",
    ):
        assert words in page


def test_the_ledger_sums_by_step():
    first, second = ledger_rows(BATCHES)
    assert (first.step, first.started, first.trained, first.zero_variance, first.system_errors) == (0, 5, 2, 2, 1)
    assert (second.step, second.started, second.trained, second.zero_variance) == (1, 7, 4, 2)
    assert (first.pass_rate, second.pass_rate) == (0.25, pytest.approx(4 / 6))


def test_curves_leave_gaps_where_a_step_has_no_figure():
    found = curves(METRICS[::-1])
    assert found["Reward (pass rate)"] == [(0, 0.25), (1, 0.5)]
    assert found["Zero-variance groups (share)"] == [(0, 0.5)]
    assert found["Entropy (nats a token)"] == [(0, 0.5)]
    assert found["Sampled tokens an episode"] == [(0, 40.0), (1, 41.0)]
    assert "Gradient norm" not in found


def test_metrics_rows_are_read_and_a_cut_line_is_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 0}\n{"ste')
    assert read_metrics(path) == [{"step": 0}]
    assert read_metrics(tmp_path / "none.jsonl") == []
    path.write_bytes(b'{"step": 0}\nnonsense\n')
    with pytest.raises(ConfigurationError, match=r"metrics\.jsonl, line 2"):
        read_metrics(path)
