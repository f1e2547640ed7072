import dataclasses

import pytest

from protocol.records import ToolCall
from rollout_engine.environments.catalogue import domain
from rollout_engine.environments.registry import find_task
from rollout_engine.environments.rules import check_disjoint, check_split, check_task
from rollout_engine.environments.task import Say, Slip
from rollout_engine.errors import ConfigurationError

TRAVEL = domain("travel")
TASK = next(
    task
    for task in (find_task(f"travel/hotel_downgrade/train/{seed}") for seed in range(20))
    if [call.name for call in task.oracle]
    == ["get_booking", "request_approval", "change_room", "refund", "close_ticket"]
)


def with_script(*turns):
    return dataclasses.replace(TASK, script=turns, slips=())


def refusal(task):
    with pytest.raises(ConfigurationError) as caught:
        check_task(TRAVEL, task)
    assert str(caught.value).startswith(f"task {task.id}: ")
    return str(caught.value)


def test_a_sound_task_passes():
    check_task(TRAVEL, TASK)


def test_an_oracle_with_a_failing_call_is_refused():
    closing = ToolCall("close_ticket", {"ticket_id": "T999", "resolution": "resolved"})
    says = refusal(with_script(*TASK.oracle[:-1], closing))
    assert (
        "the oracle fails: close_ticket(ticket_id='T999', resolution='resolved') answers {\"error\":\"not found\"}"
        in says
    )


def test_an_oracle_that_only_reads_is_refused():
    assert "doing nothing passes" in refusal(with_script(TASK.oracle[0], Say("all done .")))


def test_a_call_that_is_not_needed_is_refused():
    # The first move does all that the second would do again.
    move = ToolCall("move_room", {"booking_id": TASK.oracle[0].arguments["booking_id"]})
    assert "passes without its call move_room" in refusal(with_script(*TASK.oracle, move, move))


def test_a_slip_that_passes_is_refused():
    harmless = Slip("harmless", TASK.script[1:])
    assert "slip 'harmless' passes the check" in refusal(dataclasses.replace(TASK, slips=(harmless,)))


def test_rows_that_do_not_fit_are_refused():
    rows = {**TASK.rows, "payments": [{"payment_id": "P111", "booking_id": "B404", "amount": 1}]}
    assert "FOREIGN KEY" in refusal(dataclasses.replace(TASK, rows=rows))
    assert "no such table" in refusal(dataclasses.replace(TASK, rows={"spaceships": [{"id": 1}]}))


@pytest.mark.parametrize(
    ("table", "column", "value", "says"),
    [
        ("bookings", "total", "abc", "total is 'abc', which is no int"),
        ("bookings", "nights", 1.5, "nights is 1.5, which is no int"),
        ("payments", "amount", 10**30, "too large"),
        ("guests", "name", "\ud800", "surrogates"),
        ("tickets", "ticket_id", None, "ticket_id is None, which is no str"),
    ],
)
def test_values_that_sqlite_would_take_or_choke_on_are_refused(table, column, value, says):
    first, *others = TASK.rows[table]
    rows = {**TASK.rows, table: [{**first, column: value}, *others]}
    message = refusal(dataclasses.replace(TASK, rows=rows))
    assert "rows do not fit the tables of domain travel" in message
    assert says in message


def test_an_oracle_that_crashes_a_tool_is_refused():
    booking, *others = TASK.rows["bookings"]
    rows = {**TASK.rows, "bookings": [{**booking, "nights": 2**62}, *others]}
    assert "tool change_room crashed: OverflowError" in refusal(dataclasses.replace(TASK, rows=rows))


def test_an_entity_of_the_other_split_is_refused():
    with pytest.raises(ConfigurationError, match="is in split heldout but its entity .* belongs to train"):
        check_split([dataclasses.replace(TASK, split="heldout")])


def test_the_same_content_under_two_names_is_refused():
    twin = dataclasses.replace(TASK, id="travel/other/train/0")
    with pytest.raises(ConfigurationError, match="have the same content"):
        check_split([TASK, twin])
    with pytest.raises(ConfigurationError, match="appears twice"):
        check_split([TASK, TASK])


def test_a_shared_entity_is_refused():
    moved = dataclasses.replace(TASK, id="travel/other/heldout/0", split="heldout", opening="something else")
    with pytest.raises(ConfigurationError, match="appears in both training and held-out tasks"):
        check_disjoint([TASK], [moved])
