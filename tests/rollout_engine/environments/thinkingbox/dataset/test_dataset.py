import dataclasses

import pytest

from rollout_engine.environments.thinkingbox.dataset import DatasetError, Fixture, GoldenCall, formatted, load_dataset
from rollout_engine.environments.thinkingbox.dataset.python_file import parse_python

ALL = [
    "hotel.py:test_cancel",
    "hotel.py:test_extend_new",
    "hotel.py:test_breakfast",
    "hotel.py:test_today",
    "hotel.py:test_raises_when_cancelled",
    "hotel_more_talk.py:test_goes_on",
    "hotel_more_talk.py:test_fixtures",
    "hotel_more_talk.py:test_letter",
    "hotel_plain.yaml:nothing_to_do",
]


def uids(cases):
    return [case.uid for case in cases]


def one(dataset, selector, agent="desk"):
    (case,) = dataset.hydrate([selector], agent)
    return case


def test_a_case_has_all_that_an_episode_needs(dataset):
    case = one(dataset, "hotel.py:test_extend_new")
    assert (case.agent.name, case.scenario.name, case.function) == ("desk", "hotel", "test_extend_new")
    assert [tool.name for tool in case.builtin_tools] == ["report_instructions"] and case.builtin_tools[0].is_end_turn
    assert [booking["id"] for booking in case.world["hotel"]["bookings"]] == ["B1", "B2", "B3"]
    assert case.golden == (GoldenCall("hotel", "change_nights", {"booking_id": "B3", "nights": 4}),)
    assert (case.max_user_turns, case.max_agent_turns) == (2, 6)
    assert case.user_context == "Your booking is B3. You are Cy Dole."
    assert case.instructions == "A booking is cancelled only when the guest names its id."
    assert case.tags.flat() == ("domain:customer-service", "eval:orchestration:tool-selection", "small", "day")
    assert case.metadata["test_case_file"] == case.file and case.line == 29
    tools = {tool.name: tool for tool in case.scenario.tools}
    assert tools["breakfast_hours"].direct_response == "Breakfast is from {opens} to {closes}."
    assert tools["get_booking"].override_arg_description == {"booking_id": "The id, a B and a number."}
    names = {}
    exec(
        case.test_code.replace("from thinkingbox.common import Judge, TestContext", "Judge = TestContext = object"),
        names,
    )
    assert names["__tb_test_fn"].__name__ == case.function


def test_what_a_case_does_not_say_is_the_default(dataset):
    case = one(dataset, "hotel.py:test_breakfast")
    assert (case.max_user_turns, case.max_agent_turns, case.user_context, case.history) == (10, None, None, None)
    assert (case.init, case.golden, case.format_query) == ({}, (), False)
    assert case.world == case.scenario.world_state


def test_texts_are_filled_from_what_init_returned(dataset):
    case = one(dataset, "hotel.py:test_today")
    started = formatted(case, {"hotel": {"today": "2030-05-01"}})
    assert started.query == "Today is 2030-05-01. Is B2 still booked?"
    assert started.bot_instructions == "The date is 2030-05-01."
    assert started.instructions.split("\n")[1] == "The date is 2030-05-01." and started.user_context is None
    with pytest.raises(DatasetError, match=r"hotel.py:56: hotel.py:test_today: query can't be filled .*'today'"):
        formatted(case, {"hotel": {}})
    other = one(dataset, "hotel.py:test_cancel")
    assert formatted(other, {}) is other
    for text in ("{", "{init.hotel}", "{0}", "{init[hotel]!x}"):
        with pytest.raises(DatasetError, match="query can't be filled"):
            formatted(dataclasses.replace(case, query=text), {"hotel": {}})


def test_fixtures_of_the_nearest_conftest_count_and_the_scenarios_last(dataset):
    root, near, scenario = (
        one(dataset, name).fixtures
        for name in ("hotel.py:test_cancel", "hotel_more_talk.py:test_fixtures", "hotel_more_talk.py:test_letter")
    )
    desk = Fixture("hotel_fixtures.Desk")
    assert root == {"desk": desk, "auditor": Fixture("hotel_fixtures.Auditor", {"limit": 3})}
    assert near == {"desk": desk, "auditor": Fixture("hotel_fixtures.Auditor", {"limit": 6})}
    assert scenario == {"desk": desk, "auditor": Fixture("hotel_fixtures.Auditor", {"limit": 9})}
    assert one(dataset, "hotel_more_talk.py:test_fixtures").parameters == ("x", "judge", "desk", "auditor")


def test_selectors(dataset):
    assert uids(dataset.hydrate(agent="desk")) == ALL
    assert uids(dataset.hydrate(["hotel.py"], "desk")) == ALL[:5]
    assert uids(dataset.hydrate(["hotel_more"], "desk")) == ALL[5:8]
    assert uids(dataset.hydrate(["hotel_more_talk.py:test_letter", "hotel_plain.yaml"], "desk")) == [ALL[7], ALL[8]]
    assert uids(dataset.hydrate(["hotel_more/hotel_more_talk.py:test_letter"], "desk")) == [ALL[7]]
    assert uids(dataset.hydrate([str(dataset.tests / "hotel.py")], "desk")) == ALL[:5]
    assert uids(dataset.hydrate(["smoke.yaml"], "desk")) == [ALL[0], ALL[5], ALL[2], ALL[8]]


def test_tags_select_among_them(dataset):
    assert uids(dataset.hydrate(agent="desk", tags=["writes"])) == [ALL[0]]
    assert uids(dataset.hydrate(agent="desk", tags=["domain:customer-service", "small"])) == ALL[:7] + ALL[8:]
    assert uids(dataset.hydrate(["hotel.py"], "desk", ["category:user", "day"])) == [ALL[0]]


def test_a_case_alone_is_hydrated_without_the_yaml_of_others(copy):
    dataset = copy("test_case/hotel.py", "query: When is breakfast?", "query: [")
    assert one(dataset, "hotel.py:test_cancel").query == "Please cancel my booking."
    with pytest.raises(DatasetError, match=r"hotel.py:\d+: "):
        dataset.hydrate(["hotel.py"], "desk")


@pytest.mark.parametrize(
    ("selectors", "fault"),
    [
        (["hotels.py"], "no test file, folder or list 'hotels.py'; did you mean 'hotel.py'?"),
        (["hotels.py:test_cancel"], "no test file, folder or list 'hotels.py'; did you mean 'hotel.py'?"),
        (["hotel.py:test_cancle"], "no test 'test_cancle' in .*; did you mean 'test_cancel'?"),
        (["hotel.py:test_not_ready"], "hotel.py:test_not_ready is tagged skip"),
        (
            ["hotel.py", "hotel.py:test_cancel"],
            "hotel.py:test_cancel is selected twice, by 'hotel.py' and by ",
        ),
        ([""], "selector 1 of 1 is empty; name a test, .* every test of .*test_case"),
        (["hotel.py:test_cancel", " "], "selector 2 of 2 is empty"),
        (["smoke.yaml", "hotel_plain.yaml"], "nothing_to_do is selected twice, by .*smoke.yaml:4 and by 'hotel_plain"),
    ],
)
def test_a_selector_that_selects_nothing_or_again_is_refused(dataset, selectors, fault):
    with pytest.raises(DatasetError, match=fault):
        dataset.hydrate(selectors, "desk")


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        ("hotel.py:test_cancle", "no test 'test_cancle'"),
        ("hotel.py:test_not_ready", "is tagged skip"),
        ("hotel.py:test_cancel", "is selected twice, by .*smoke.yaml:1 and by .*smoke.yaml:2"),
        ("hotel.py", "'hotel.py' is not file:test"),
        ("{a: 1}", "is not file:test"),
        ("gone.py:test", "no test file, folder or list 'gone.py'"),
        ("''", "'' is not file:test"),
        ("':'", "no test file, folder or list ''"),
    ],
)
def test_a_test_list_tells_the_line(copy, entry, fault):
    dataset = copy("smoke.yaml", "hotel_more_talk.py:test_goes_on", entry)
    with pytest.raises(DatasetError, match=rf"smoke.yaml:2: .*{fault}"):
        dataset.hydrate(["smoke.yaml"], "desk")


def test_one_uid_in_two_files_is_refused(copy):
    (copy.folder / "test_case/other").mkdir()
    (copy.folder / "test_case/other/hotel.py").write_text((copy.folder / "test_case/hotel.py").read_text())
    with pytest.raises(DatasetError, match=r"selected twice, .* in .*test_case/hotel.py and .*other/hotel.py"):
        load_dataset(copy.folder).hydrate(agent="desk")


def test_the_folder_of_the_longest_prefix_is_looked_in_first(copy):
    (copy.folder / "test_case/hotel_more_talk").mkdir()
    near = copy.folder / "test_case/hotel_more_talk/hotel_more_talk_two.py"
    for folder in ("hotel_more_talk", "hotel_more"):
        file = copy.folder / "test_case" / folder / "hotel_more_talk_two.py"
        file.write_text('def t(x, judge):\n    """!\n    scenario: hotel\n    query: q\n    """\n')
    assert one(load_dataset(copy.folder), "hotel_more_talk_two.py:t").file == str(near)


@pytest.mark.parametrize(
    ("name", "old", "new", "fault"),
    [
        (
            "test_case/hotel.py",
            "scenario: hotel",
            "scenario: hotl",
            "hotel.py:4: no scenario 'hotl'; did you mean 'hotel'",
        ),
        ("test_case/hotel.py", "scenario: hotel\n", "", r"hotel.py:13: test_cancel has no scenario"),
        (
            "test_case/hotel.py",
            "query: Please",
            "qery: Please",
            "hotel.py:16: unknown key 'qery'; did you mean 'query'",
        ),
        ("test_case/hotel.py", "tags: [day]", "tag: [day]", "hotel.py:5: unknown key 'tag'; did you mean 'tags'"),
        ("test_case/hotel.py", "[category:user", "[category:usr", "hotel.py:24: .*did you mean 'user'"),
        ("test_case/hotel.py", "      hotel:\n        golden", "      hotels:\n        golden", "no server 'hotels'"),
        ("test_case/hotel.py", "max_user_sim_turns: 2", "max_user_sim_turns: two", "hotel.py:33: .*got `str`"),
        (
            "test_case/hotel.py",
            "query: Please",
            "query: a\n    query: Please",
            "hotel.py:17: the key 'query' is written",
        ),
        ("test_case/hotel_more/hotel_more_talk.py", ", auditor)", ", auditr)", "'auditr', .*did you mean 'auditor'"),
        ("test_case/conftest.yaml", "fixtures:", "fixture:", "conftest.yaml:1: unknown key 'fixture'"),
        ("test_case/conftest.yaml", "type: hotel_fixtures.Desk", "type: Desk", "conftest.yaml:2: .*dotted path"),
        ("test_case/conftest.yaml", "desk:", "judge:", "'judge': no test can take a fixture of this name"),
        ("test_case/hotel_plain.yaml", "  query:", "  querry:", "hotel_plain.yaml:4: unknown key 'querry'"),
        ("test_case/hotel_plain.yaml", "scenario: hotel", "scenario: h", "hotel_plain.yaml:3: no scenario 'h'"),
        (
            "test_case/hotel_plain.yaml",
            "__tb_test_fn = check",
            "",
            "hotel_plain.yaml:7: nothing_to_do: test_code binds no",
        ),
        ("test_case/hotel_plain.yaml", "test_cases:", "cases:", "hotel_plain.yaml:1: .*missing|unknown key 'cases'"),
        (
            "scenario/hotel.yaml",
            "- name: change_nights",
            "- nam: change_nights",
            "hotel.yaml:14: .*did you mean 'name'",
        ),
        ("scenario/hotel.yaml", "- name: change_nights", "- name: get_booking", "hotel.yaml:14: a second tool"),
        ("scenario/hotel.yaml", "domain:customer", "domain:custmer", "hotel.yaml:7: .*did you mean 'customer-service'"),
        ("scenario/hotel_mail.yaml", "fixtures:", "fixture:", "hotel_mail.yaml:12: unknown key 'fixture'"),
        ("agent/desk.yaml", "builtin_tools:", "builtin_tool:", "desk.yaml:5: unknown key 'builtin_tool'"),
        ("agent/desk.yaml", "  is_end_turn", "  is_endturn", "desk.yaml:8: unknown key 'is_endturn'"),
    ],
)
def test_a_fault_is_told_with_file_line_and_the_nearest_name(copy, name, old, new, fault):
    dataset = copy(name, old, new)
    with pytest.raises(DatasetError, match=fault):
        dataset.hydrate(agent="desk")


def test_servers_are_checked_against_the_servers_file(dataset):
    assert len(load_dataset(dataset.folder, ["hotel", "mailbox"]).hydrate(agent="desk")) == len(ALL)
    with pytest.raises(DatasetError, match=r"hotel.yaml:2: no server 'hotel' in the servers file; did you mean 'ho"):
        load_dataset(dataset.folder, ["hotels", "mailbox"]).hydrate(agent="desk")


def test_a_server_of_the_servers_file_may_be_added_by_a_test(copy):
    copy("test_case/hotel.py", "      hotel:\n        golden", "      mailbox: {a: 1}\n      hotel:\n        golden")
    case = one(load_dataset(copy.folder, ["hotel", "mailbox"]), "hotel.py:test_cancel")
    assert list(case.world) == ["hotel", "mailbox"]
    with pytest.raises(DatasetError, match="init: no server 'mailbox'"):
        one(load_dataset(copy.folder), "hotel.py:test_cancel")


def test_what_is_laid_over_a_server_must_fit_it(copy):
    dataset = copy("scenario/hotel.yaml", "  hotel:\n    bookings: &bookings\n", "  hotel:\n")
    with pytest.raises(DatasetError, match="hotel is no mapping in the scenario"):
        one(dataset, "hotel.py:test_cancel")


def test_an_agent_is_named_unless_there_is_one(copy):
    dataset = load_dataset(copy.folder)
    with pytest.raises(DatasetError, match="name the agent: desk, night"):
        dataset.hydrate()
    with pytest.raises(DatasetError, match="no agent 'dusk'; did you mean 'desk'"):
        dataset.hydrate(agent="dusk")
    (copy.folder / "agent/desk.yaml").unlink()
    assert one(load_dataset(copy.folder), "hotel.py:test_cancel", "").agent.name == "night"


def test_a_byte_order_mark_is_no_part_of_a_file(copy):
    before = load_dataset(copy.folder).hydrate(["hotel.py"], "desk")
    for file in (copy.folder / "test_case/hotel.py", copy.folder / "agent/desk.yaml"):
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert load_dataset(copy.folder).hydrate(["hotel.py"], "desk") == before


def test_a_selector_too_long_for_a_file_is_refused(dataset):
    with pytest.raises(DatasetError, match="no test file, folder or list 'aaa"):
        dataset.hydrate(["a" * 5000])


def test_a_malformed_solution_is_told_when_it_is_asked_for(copy):
    dataset = copy("test_case/hotel.py", "{tool: get_booking, param", "{tol: get_booking, param")
    case = one(dataset, "hotel.py:test_cancel")
    with pytest.raises(DatasetError, match=r"hotel.py:14: hotel.py:test_cancel: hotel.golden_test_case: .*`tool`"):
        _ = case.golden


def test_a_folder_that_is_no_data_set_is_refused(tmp_path):
    with pytest.raises(DatasetError, match="no data set: there is no folder agent/"):
        load_dataset(tmp_path)
    with pytest.raises(DatasetError, match="no data set"):
        load_dataset(tmp_path / "gone")


def test_a_file_is_parsed_again_only_when_it_has_changed(copy):
    before = one(load_dataset(copy.folder), "hotel.py:test_cancel")
    parsed = parse_python.cache_info().misses
    assert one(load_dataset(copy.folder), "hotel.py:test_cancel") == before
    assert parse_python.cache_info().misses == parsed
    after = one(copy("test_case/hotel.py", "query: Please cancel", "query: Cancel"), "hotel.py:test_cancel")
    assert parse_python.cache_info().misses == parsed + 1
    assert (before.query, after.query) == ("Please cancel my booking.", "Cancel my booking.")
    assert before != after and hash(before) == hash(after)
