from thinkingbox.common import Judge, TestContext

"""!
scenario: hotel
tags: [day]
"""


def same_as_golden(x: TestContext):
    effects = x.effects["hotel"]
    assert effects["result_hash"] == effects["golden_hash"], f"the hotel's books differ: {effects['bookings']}"


def test_cancel(x: TestContext, judge: Judge):
    """!
    query: Please cancel my booking.
    user_context: You are Ada Quint, and your booking is B1. You want it cancelled whatever it costs.
    init:
      hotel:
        golden_test_case:
          tool_interactions:
          - {tool: get_booking, parameters: {booking_id: B1}}
          - {tool: cancel_booking, parameters: {booking_id: B1}}
    tags: [category:user, writes]
    """
    same_as_golden(x)


def test_extend_new(x: TestContext, judge: Judge):
    """!
    query: Please make my stay two nights longer, it is booking B3.
    user_context: Your booking is B3. You are Cy Dole.
    max_user_sim_turns: 2
    max_agent_sim_turns: 6
    init:
      hotel:
        bookings:
        - {id: B3, guest: Cy Dole, room: 21, nights: 2}
        golden_test_case:
          tool_interactions:
          - {tool: change_nights, parameters: {booking_id: B3, nights: 4}}
    """
    same_as_golden(x)
    assert [call.tool_call.name for call in x.tool_calls].count("change_nights") == 1
    return 0.5 if len(x.tool_calls) > 1 else 1.0


def test_breakfast(x: TestContext, judge: Judge):
    """!
    query: When is breakfast?
    """
    assert x.tool_direct_responses == ["Breakfast is from 7:00 to 10:30."]
    assert judge.no_repeat(x.response, x.tool_direct_responses)


def test_today(x: TestContext, judge: Judge):
    """!
    query: Today is {init[hotel][today]}. Is B2 still booked?
    format_query: true
    bot_instructions: The date is {init[hotel][today]}.
    """
    same_as_golden(x)
    assert judge.text_yesno(x.response, "Does the message say that booking B2 stands?")


def test_raises_when_cancelled(x: TestContext, judge: Judge):
    """!
    query: Make B2 a stay of 5 nights.
    init:
      hotel:
        golden_test_case:
          tool_interactions:
          - {tool: change_nights, parameters: {booking_id: B2, nights: 5}}
    """
    # A KeyError where the agent has cancelled the booking.
    assert x.effects["hotel"]["bookings"]["B2"]["nights"] == 5


def test_not_ready(x: TestContext, judge: Judge):
    """!
    query: Is there a pool?
    tags: [skip]
    """
    raise NotImplementedError
