import pytest

from rollout_engine.environments.backend import Backend, replay
from rollout_engine.environments.catalogue import domain
from rollout_engine.environments.domain import Domain
from rollout_engine.environments.families import Draw
from rollout_engine.environments.schema import Schema, Table
from rollout_engine.environments.tools import ToolFailure
from rollout_engine.environments.travel.stay import Stay
from rollout_engine.errors import BackendError


def half_then_refuse(db, amount: int) -> dict:
    """writes, then refuses"""
    db.execute("INSERT INTO ledger VALUES (?)", (amount,))
    raise ToolFailure("too much")


def half_then_crash(db, amount: int) -> dict:
    """writes, then crashes"""
    db.execute("INSERT INTO ledger VALUES (?)", (amount,))
    raise KeyError("oops")


def write(db, amount: int) -> dict:
    """writes"""
    db.execute("INSERT INTO ledger VALUES (?)", (amount,))
    return {"amount": amount, "left_out": None}


TOY = Domain(
    "toy",
    "",
    Schema("CREATE TABLE ledger (amount INTEGER PRIMARY KEY)", (Table("ledger", ("amount",)),)),
    (half_then_refuse, half_then_crash, write),
    (),
)


@pytest.fixture
def stay():
    return Stay(Draw("travel", "x", "train", 0), room="suite", nights=3, tier="gold", notice="late")


@pytest.fixture
def backend(stay):
    backend = Backend(domain("travel"), stay.rows)
    yield backend
    backend.close()


def test_reading_shows_all_that_is_needed(backend, stay):
    result = backend.call("get_booking", {"booking_id": stay.subject})
    guest = stay.rows["guests"][0]["name"]
    assert not result.is_error
    assert result.text == (
        f'{{"guest":"{guest}","tier":"gold","verified":"yes","room":"suite","total":{stay.total},"status":"booked",'
        f'"notice":"late","payments":["{stay.payments[0]}"],"ticket":"{stay.ticket}"}}'
    )


@pytest.mark.parametrize(
    ("name", "arguments", "phrase"),
    [
        ("fly", {}, "unknown tool"),
        ("get_booking", {}, "missing parameter"),
        ("get_booking", {"booking_id": "B000"}, "not found"),
        ("get_booking", {"booking_id": "b000"}, "bad value"),
        ("get_booking", {"booking_id": None}, "bad value"),
        ("get_booking", {"booking_id": 417}, "bad value"),
        ("get_booking", {"booking_id": "B00\ud800"}, "bad value"),
        ("get_booking", {"booking_id": "B000\n"}, "bad value"),
        ("get_booking", {"booking_id": "B000", "extra": 1}, "unknown parameter"),
        ("get_booking", {"db": "B000"}, "unknown parameter"),
        ("refund", {"payment_id": "P000", "amount": 5}, "not found"),
        ("refund", {"payment_id": "P000", "amount": "5"}, "bad value"),
        ("refund", {"payment_id": "P000", "amount": True}, "bad value"),
        ("refund", {"payment_id": "P000", "amount": 5.0}, "bad value"),
        ("refund", {"payment_id": "P000", "amount": 0}, "bad value"),
        ("refund", {"payment_id": "P000", "amount": 10**30}, "bad value"),
        ("refund", {"payment_id": "P000", "amount": [5]}, "bad value"),
        ("close_ticket", {"ticket_id": "T000", "resolution": "solved"}, "bad value"),
    ],
)
def test_what_an_agent_gets_wrong_is_a_tool_error(backend, name, arguments, phrase):
    before = backend.snapshot()
    result = backend.call(name, arguments)
    assert result.is_error
    assert result.text == f'{{"error":"{phrase}"}}'
    assert backend.snapshot() == before


def test_refusals_by_state(backend, stay):
    payment, ticket = stay.payments[0], stay.ticket
    assert backend.call("refund", {"payment_id": payment, "amount": stay.total + 1}).text == '{"error":"too much"}'
    assert backend.call("change_room", {"booking_id": stay.subject, "room": "suite"}).text == '{"error":"no change"}'
    assert backend.call("waive_fee", {"booking_id": stay.subject}).text == '{"error":"no fee"}'
    due = stay.total - stay.total // 2
    assert backend.call("cancel_booking", {"booking_id": stay.subject}).text == f'{{"refund_due":{due}}}'
    assert backend.call("cancel_booking", {"booking_id": stay.subject}).text == '{"error":"cancelled"}'
    closing = {"ticket_id": ticket, "resolution": "resolved"}
    assert backend.call("close_ticket", closing).text == '{"status":"closed"}'
    assert backend.call("close_ticket", closing).text == '{"error":"closed"}'


def test_approval_after_the_change_leaves_another_state(stay):
    change = stay.act("change_room", room="single")
    approval = stay.act("request_approval", reason="downgrade")
    states = []
    for calls in ((approval, change), (change, approval)):
        backend = Backend(domain("travel"), stay.rows)
        for call in calls:
            assert not backend.call(call.name, call.arguments).is_error
        states.append(backend.finish()["bookings"][(stay.subject,)]["authorised"])
    assert states == ["yes", "no"]


def test_a_failed_tool_leaves_nothing_behind():
    backend = Backend(TOY, {})
    assert backend.call("half_then_refuse", {"amount": 1}).text == '{"error":"too much"}'
    assert backend.snapshot() == {"ledger": {}}
    with pytest.raises(BackendError, match="tool half_then_crash crashed: KeyError"):
        backend.call("half_then_crash", {"amount": 2})
    assert backend.snapshot() == {"ledger": {}}
    assert backend.call("write", {"amount": 3}).text == '{"amount":3}'
    assert backend.snapshot() == {"ledger": {(3,): {"amount": 3}}}


def test_a_constraint_that_the_tool_does_not_check_is_a_crash():
    backend = Backend(TOY, {"ledger": [{"amount": 1}]})
    with pytest.raises(BackendError, match="IntegrityError"):
        backend.call("write", {"amount": 1})


def test_no_call_after_finish(backend, stay):
    backend.finish()
    with pytest.raises(BackendError, match="after the backend was closed"):
        backend.call("get_booking", {"booking_id": stay.subject})


def test_replay_is_repeatable(stay):
    class Named:
        rows = stay.rows

    calls = (stay.act("cancel_booking"), stay.refund(stay.cancelled("late")), stay.close("resolved"))
    one, two = (replay(domain("travel"), Named, calls)[1] for _ in range(2))
    assert one["payments"] == two["payments"]
    assert one["payments"][(stay.payments[0],)]["refunded"] == stay.total - stay.total // 2
