"""Any change of a graded cell is seen, and no change of a free one is."""

import copy

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from protocol.records import RowChange
from rollout_engine.environments.schema import Table
from rollout_engine.grading.diff import compare, explain

TABLES = (
    Table("tickets", ("ticket_id",), frozenset({"note"})),
    Table("log", ("log_id",), frozenset({"log_id", "time"})),
)

values = st.one_of(st.none(), st.integers(-5, 5), st.sampled_from(["", "open", "closed", "5"]), st.floats(0, 3))
tickets = st.dictionaries(
    st.from_regex(r"T[0-9]{3}", fullmatch=True),
    st.fixed_dictionaries({"status": values, "amount": values, "note": values}),
    min_size=1,
    max_size=5,
)
logs = st.lists(st.fixed_dictionaries({"what": values, "amount": values, "time": values}), min_size=1, max_size=5)


@st.composite
def snapshots(draw):
    return {
        "tickets": {(key,): {"ticket_id": key, **row} for key, row in draw(tickets).items()},
        "log": {(number,): {"log_id": number, **row} for number, row in enumerate(draw(logs))},
    }


def cells(snapshot, graded):
    free = {table.name: table.free for table in TABLES}
    return [
        (table, key, column)
        for table, rows in snapshot.items()
        for key, row in rows.items()
        for column in row
        if (column not in free[table]) is graded and column not in ("ticket_id", "log_id")
    ]


@settings(deadline=None)
@given(snapshots())
def test_equal_snapshots_do_not_differ(snapshot):
    assert compare(TABLES, snapshot, copy.deepcopy(snapshot)) == ()


@settings(deadline=None)
@given(snapshots(), st.data(), values)
def test_any_graded_cell_counts(snapshot, data, value):
    table, key, column = data.draw(st.sampled_from(cells(snapshot, graded=True)))
    changed = copy.deepcopy(snapshot)
    before = changed[table][key][column]
    assume(type(before) is not type(value) or before != value)
    changed[table][key][column] = value
    assert compare(TABLES, snapshot, changed)
    assert compare(TABLES, changed, snapshot)


@settings(deadline=None)
@given(snapshots(), st.data(), values)
def test_no_free_cell_counts(snapshot, data, value):
    table, key, column = data.draw(st.sampled_from(cells(snapshot, graded=False)))
    changed = copy.deepcopy(snapshot)
    changed[table][key][column] = value
    assert compare(TABLES, snapshot, changed) == ()


@settings(deadline=None)
@given(snapshots(), st.data())
def test_a_missing_and_an_extra_row_count(snapshot, data):
    table = data.draw(st.sampled_from(["tickets", "log"]))
    key = data.draw(st.sampled_from(sorted(snapshot[table])))
    changed = copy.deepcopy(snapshot)
    row = changed[table].pop(key)
    (missing,) = compare(TABLES, snapshot, changed)
    (extra,) = compare(TABLES, changed, snapshot)
    assert (missing.kind, extra.kind, missing.table) == ("missing", "extra", table)
    assert missing.expected == extra.actual
    assert missing.expected.items() <= row.items()


@settings(deadline=None)
@given(snapshots(), st.randoms())
def test_rows_with_free_keys_match_in_any_order(snapshot, random):
    rows = list(snapshot["log"].values())
    random.shuffle(rows)
    changed = {**snapshot, "log": {(number + 70,): {**row, "log_id": number + 70} for number, row in enumerate(rows)}}
    assert compare(TABLES, snapshot, changed) == ()


@pytest.mark.parametrize("count", [1, 3])
def test_how_often_a_row_occurs_counts(count):
    row = {"what": "refund", "amount": 5, "time": "now"}
    two = {"log": {(number,): {"log_id": number, **row} for number in range(2)}}
    other = {"log": {(number,): {"log_id": number, **row} for number in range(count)}}
    (change,) = compare(TABLES, two, other)
    assert change.kind == ("missing" if count == 1 else "extra")
    assert (change.expected or change.actual) == {"what": "refund", "amount": 5}


def test_the_difference_is_told_in_words():
    expected = {
        "tickets": {
            ("T204",): {"ticket_id": "T204", "status": "closed", "amount": 1, "note": ""},
            ("T205",): {"ticket_id": "T205", "status": "open", "amount": 2, "note": ""},
        },
        "log": {},
    }
    actual = {
        "tickets": {("T204",): {"ticket_id": "T204", "status": "open", "amount": 1, "note": "hm"}},
        "log": {(7,): {"log_id": 7, "what": "refund", "amount": 120, "time": "now"}},
    }
    changes = compare(TABLES, expected, actual)
    assert changes == (
        RowChange("tickets", ("T204",), "wrong", {"status": "closed"}, {"status": "open"}),
        RowChange("tickets", ("T205",), "missing", {"ticket_id": "T205", "status": "open", "amount": 2}),
        RowChange("log", (), "extra", actual={"what": "refund", "amount": 120}),
    )
    assert explain(changes) == (
        "tickets T204: status is 'open', expected 'closed'",
        "tickets T205: a row with ticket_id='T205', status='open', amount=2 is missing",
        "log: a row with what='refund', amount=120 should not be there",
    )
