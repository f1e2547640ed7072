"""Who gets the next episode: by measured speed, own load and asked-for pauses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.records import ActorLoad
from rollout_engine.actors.placement import FULL, Member, choose


def member(speed=None, in_flight=0):
    out = Member(in_flight=in_flight)
    if speed is not None:
        out.answered(round(1000 * speed), 1000.0)
    return out


def place(members, episodes, loads=None):
    """Place episodes that all stay."""
    for _ in range(episodes):
        members[choose(members, loads or {})].in_flight += 1
    return {url: member.in_flight for url, member in members.items()}


@pytest.mark.parametrize(
    ("speeds", "shares"),
    [
        ({"a": 10, "b": 10}, {"a": 20, "b": 20}),
        ({"a": 30, "b": 10}, {"a": 30, "b": 10}),
        ({"a": 50, "b": 20, "c": 10}, {"a": 25, "b": 10, "c": 5}),
        ({"a": 10, "b": None}, {"a": 20, "b": 20}),
        ({"a": None, "b": None}, {"a": 20, "b": 20}),
    ],
)
def test_episodes_are_shared_out_in_proportion_to_speed_and_a_newcomer_is_thought_fast(speeds, shares):
    assert place({url: member(speed) for url, speed in speeds.items()}, 40) == shares


@given(st.lists(st.floats(0.1, 1000), min_size=1, max_size=6), st.integers(1, 200))
def test_no_actor_waits_longer_for_its_next_token_than_the_choice_would_have(speeds, episodes):
    members = {str(number): member(speed) for number, speed in enumerate(speeds)}
    place(members, episodes)
    waits = [m.in_flight / m.speed for m in members.values()]
    others = [(m.in_flight + 1) / m.speed for m in members.values()]
    assert max(waits) <= min(others) * (1 + 1e-9)


def test_an_actor_with_a_full_cache_gets_nothing_while_another_has_room():
    members = {"a": member(100), "b": member(1)}
    assert place(members, 5, {"a": ActorLoad(kv_use=FULL)}) == {"a": 0, "b": 5}
    assert choose(members, {"a": ActorLoad(kv_use=FULL), "b": ActorLoad(kv_use=1.0)}) == "a"


def test_speed_is_of_the_last_answers():
    one = Member()
    assert one.speed is None
    for _ in range(300):
        one.answered(100, 1.0)
    assert one.speed == pytest.approx(100)
    for _ in range(300):
        one.answered(10, 1.0)
    assert one.speed == pytest.approx(10, rel=0.1)


def test_a_pause_is_as_long_as_asked_and_never_longer_than_the_bound():
    one = Member()
    one.rest(100.0, 7.0, longest=60.0)
    assert one.resting(106.9) and not one.resting(107.0)
    one.rest(200.0, 3600.0, longest=60.0)
    assert one.resting(259.9) and not one.resting(260.0)


def test_a_pause_nobody_measured_doubles_until_an_answer_and_many_refusals_at_once_are_one():
    one, now, rests = Member(), 0.0, []
    for _ in range(8):
        for _ in range(50):
            one.rest(now, None, longest=60.0)
        rests.append(one.rests_until - now)
        now = one.rests_until
    assert rests == [0.5, 1, 2, 4, 8, 16, 30, 30]
    one.answered(1, 1.0)
    one.rest(now, None, longest=60.0)
    assert one.rests_until - now == 0.5
