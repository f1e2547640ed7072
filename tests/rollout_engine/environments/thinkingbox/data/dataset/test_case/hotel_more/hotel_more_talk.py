"""!
scenario: hotel
"""


def test_goes_on(x, judge):
    """!
    query: And two more nights, please.
    history: "talk: B1:0:second"
    init:
      hotel:
        golden_test_case:
          tool_interactions:
          - {tool: change_nights, parameters: {booking_id: B1, nights: 4}}
          - {tool: change_nights, parameters: {booking_id: B1, nights: 6}}
    """
    assert x.effects["hotel"]["bookings"]["B1"]["nights"] == 6


def test_fixtures(x, judge, desk, auditor):
    """!
    query: What do you know of B2?
    """
    assert sorted(desk.bookings) == ["B1", "B2"]
    assert auditor.within_limit() and auditor.limit == 6


def test_letter(x, judge, auditor):
    """!
    scenario: hotel_mail
    query: Make B1 nine nights and write to ada@example.com that it is done.
    init:
      hotel:
        golden_test_case:
          tool_interactions:
          - {tool: change_nights, parameters: {booking_id: B1, nights: 9}}
      mailbox:
        golden_test_case:
          tool_interactions:
          - {tool: send_letter, parameters: {to: ada@example.com, text: It is done.}}
    """
    assert auditor.within_limit() and auditor.limit == 9
    assert [letter["to"] for letter in x.effects["mailbox"]["sent"]] == ["ada@example.com"]
    assert x.effects["hotel"]["bookings"]["B1"]["nights"] == 9
