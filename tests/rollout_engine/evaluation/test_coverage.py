from __future__ import annotations

import msgspec
import pytest

from rollout_engine.errors import ConfigurationError
from rollout_engine.evaluation.attempts import PolicyStamp
from rollout_engine.evaluation.coverage import check_coverage
from tests.rollout_engine.evaluation.samples import campaign, row

A, B = "travel/refund/heldout/0", "retail/reship/heldout/0"
WHOLE = campaign({A: 1, B: 2}, 2)


def test_a_whole_campaign_passes():
    coverage = check_coverage(WHOLE, [A, B], 2)
    assert coverage.complete
    assert coverage.expected == 4
    coverage.require("rows")


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (WHOLE[1:], ["1 missing", f"{A} attempt 0", "Run the same command again"]),
        ([*WHOLE, WHOLE[0]], ["1 more than once", f"{A} attempt 0", "name another file"]),
        ([*WHOLE, row("travel/other/heldout/9")], ["1 not asked for", "travel/other/heldout/9 attempt 0"]),
        ([*WHOLE[1:], row(A, 0, error="actor")], ["1 without a verdict", f"{A} attempt 0: actor"]),
        (
            [*WHOLE[1:], msgspec.structs.replace(WHOLE[0], policy=PolicyStamp("base", 1))],
            ["more than one policy", "base version 0", "base version 1"],
        ),
        ([], ["4 missing"]),
    ],
    ids=["missing", "duplicate", "unexpected", "error", "policies", "empty"],
)
def test_anything_else_has_no_headline(rows, words):
    with pytest.raises(ConfigurationError) as caught:
        check_coverage(rows, [A, B], 2).require("base.jsonl")
    message = str(caught.value)
    assert "no headline for base.jsonl" in message
    for word in words:
        assert word in message


def test_a_long_list_is_cut():
    with pytest.raises(ConfigurationError, match="and 11 more"):
        check_coverage([], [A, B], 8).require("base.jsonl")
