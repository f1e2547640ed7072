import msgspec
import pytest

from protocol.config import Curation
from protocol.records import ModelCall
from rollout_engine.curation.pool import build_pool
from rollout_engine.evaluation.model_usage import ModelUsage, total, usage_of
from rollout_engine.evaluation.page import PageInputs, render_page
from rollout_engine.evaluation.repeats import _graded
from rollout_engine.evaluation.report import build_report, campaign_figures
from rollout_engine.evaluation.tables import campaign_table
from tests.rollout_engine.evaluation.samples import campaign, task, trajectory

CALLS = (
    ModelCall("user", "small", prompt_tokens=100, completion_tokens=10, cached_tokens=60, seconds=0.5, cost=0.25),
    ModelCall("judge", "wise", prompt_tokens=70, completion_tokens=1, seconds=0.25, cost=0.125),
    ModelCall("user", "small", prompt_tokens=120, completion_tokens=20, seconds=1.0, cost=0.5),
)
USED = {"judge": ModelUsage(1, 70, 0, 1, 0.25, 0.125), "user": ModelUsage(2, 220, 60, 30, 1.5, 0.75)}


def test_calls_are_added_up_by_role():
    assert usage_of(CALLS) == USED
    assert usage_of(()) == total([]) == {}
    assert total([USED, {}, {"user": ModelUsage(1, 1, 1, 1, 1.0, 1.0)}]) == {
        "judge": USED["judge"],
        "user": ModelUsage(3, 221, 61, 31, 2.5, 1.75),
    }


def test_a_row_says_what_its_attempt_used():
    id = "travel/refund/train/0"
    played = msgspec.structs.replace(trajectory(id), model_calls=CALLS)
    row = _graded(task(id), 0, campaign({id: 1}, 1)[0].policy, played)
    assert row.models == USED


def used_campaign(label="base"):
    rows = campaign({"travel/a/heldout/0": 1, "retail/a/heldout/0": 1}, 2, label)
    return [msgspec.structs.replace(row, models=USED) for row in rows]


def test_figures_and_table_show_it():
    figures = campaign_figures(used_campaign(), 1.0)
    assert figures["models"]["user"] == {
        "calls": 8, "prompt_tokens": 880, "cached_tokens": 240, "completion_tokens": 120, "seconds": 6.0, "cost": 3.0,
    }  # fmt: skip
    caption = "judge: 4 calls, 284 tokens, cost 0.5; user: 8 calls, 1\u202f000 tokens, cost 3"
    assert campaign_table(figures).caption == caption
    assert campaign_table(campaign_figures(campaign({"travel/a/heldout/0": 1}, 1), 1.0)).caption is None


@pytest.mark.parametrize("judged", [True, False])
def test_the_page_has_a_table_of_the_roles_that_were_asked(judged):
    base = used_campaign() if judged else campaign({"travel/a/heldout/0": 1, "retail/a/heldout/0": 1}, 2)
    trained = campaign({"travel/a/heldout/0": 2, "retail/a/heldout/0": 1}, 2, "trained")
    counts = {"travel/a/train/0": 3}
    pool = build_pool([task(id) for id in counts], campaign(counts, 8), Curation(), heldout=())
    page = render_page(PageInputs(build_report("demo", base, trained, {}, 1.0), "f00d", pool, [], [], []))
    assert ("<td>user: calls</td><td>8</td><td>–</td>" in page) is judged
    assert ("<td>judge: cost</td><td>0.5</td><td>–</td>" in page) is judged
    assert ("Simulated user and judge" in page) is judged
