"""Cases of the small data set through whole episodes: tokens, forked sessions, grader children."""

from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio

from protocol.records import ToolCall
from rollout_engine.environments.environment import Ended
from rollout_engine.environments.task import Say
from rollout_engine.errors import BackendError, GraderError, JudgeError
from rollout_engine.tokens.fidelity import trajectory_problems

DONE = Say("That is all. <DONE>")
GOLDEN = ("test_cancel", "test_extend_new", "test_raises_when_cancelled", "test_goes_on", "test_letter")


async def test_a_cases_own_solution_passes_and_doing_nothing_fails(open_hotel):
    async with open_hotel() as hotel:
        for name in GOLDEN:
            solved = await hotel.play(name)
            assert (solved.reward, solved.finish, solved.verdict.reasons) == (1.0, "done", ()), name
            idle = await hotel.play(name, DONE)
            assert idle.reward == 0.0 and idle.verdict.reasons, name
    assert solved.task == "thinkingbox/hotel_more_talk.py:test_letter"
    assert (solved.domain, solved.family) == ("thinkingbox", "hotel_mail")
    assert (idle.domain, hotel.tasks["test_cancel"].domain) == ("thinkingbox", "customer-service")


async def test_what_the_agent_sees_and_what_a_number_returned_is_worth(open_hotel):
    async with open_hotel() as hotel:
        change = ToolCall("change_nights", {"booking_id": "B3", "nights": "4"})  # the server takes a number in quotes
        trajectory = await hotel.play("test_extend_new", ToolCall("get_booking", {"booking_id": "B3"}), change, DONE)
        assert trajectory.reward == 0.5 and trajectory.finish == "done"
        async with hotel.environment.open(hotel.tasks["test_extend_new"], trajectory.id, 0) as stage:
            listed = {tool["function"]["name"]: tool["function"] for tool in stage.tools.listed}
            roles = [message.role for message in stage.opening]
    assert list(listed) == [
        "report_instructions", "get_booking", "cancel_booking", "change_nights", "breakfast_hours",
    ]  # fmt: skip
    assert listed["get_booking"]["description"] == "Look up one booking; the guest must have named its id."
    assert listed["get_booking"]["parameters"]["properties"]["booking_id"]["description"] == "The id, a B and a number."
    assert roles == ["system", "system", "user"]


async def test_a_direct_response_is_said_to_the_user_and_part_of_the_stream(open_hotel):
    async with open_hotel() as hotel:
        trajectory = await hotel.play("test_breakfast", ToolCall("breakfast_hours", {}), DONE)
        async with hotel.environment.open(hotel.tasks["test_breakfast"], trajectory.id, 0) as stage:
            tools = stage.tools
    assert trajectory.reward == 1.0
    [said] = [message for message in trajectory.messages if message.injected]
    assert said.content == "Breakfast is from 7:00 to 10:30."
    assert trajectory_problems(hotel.template, tools, trajectory) == []


async def test_a_history_is_part_of_the_prompt_and_played_again(open_hotel):
    async with open_hotel() as hotel:
        trajectory = await hotel.play("test_goes_on", ToolCall("get_booking", {"booking_id": "B1"}), DONE)
    contents = [message.content for message in trajectory.messages]
    assert '"nights": 4' in contents[-2] and contents[1] == "One night more for B1."
    assert contents[5] == "And two more nights, please."
    assert [message.injected for message in trajectory.messages] == [False, False, True, False, True] + [False] * 4


async def test_texts_are_filled_in_from_what_init_returned(open_hotel):
    async with open_hotel() as hotel:
        trajectory = await hotel.play("test_today", DONE)
    assert trajectory.reward == 1.0
    assert trajectory.messages[0].content.endswith("The date is 2030-05-01.")
    assert trajectory.messages[1].content == "Today is 2030-05-01. Is B2 still booked?"


async def test_a_test_that_raises_is_told_apart_on_the_golden_state(open_hotel):
    async with open_hotel() as hotel:
        cancelled = await hotel.play(
            "test_raises_when_cancelled", ToolCall("cancel_booking", {"booking_id": "B2"}), DONE
        )
        assert cancelled.reward == 0.0
        assert cancelled.verdict.reasons[0] == "the test raised: KeyError: 'B2', on the state that the agent left"

        task = hotel.tasks["test_cancel"]
        broken = replace(task, case=replace(task.case, uid="b.py:t", test_code=task.case.test_code + "\n1 / 0\n"))
        with pytest.raises(GraderError, match="b.py:t is broken: the test raised: ZeroDivisionError.* on the golden"):
            await hotel.play("", *task.script, task=broken)
        exits = replace(task, case=replace(task.case, uid="e.py:t", test_code=task.case.test_code + "\nexit()\n"))
        with pytest.raises(GraderError, match="broken"):
            await hotel.play("", *task.script, task=exits)


async def test_tools_that_end_the_conversation_are_not_carried_out(open_hotel):
    async with open_hotel() as hotel:
        report = ToolCall("report_instructions", {"what": "send money"})
        trajectory = await hotel.play("test_cancel", report)
        assert trajectory.finish == "end_turn_tool" and trajectory.messages[-1].calls == (report,)
        handed = await hotel.play(
            "test_letter", ToolCall("send_letter", {"to": "a", "text": "b"}), ToolCall("hand_over", {})
        )
        assert handed.finish == "end_turn_tool" and handed.reward == 0.0
        assert handed.messages[-1].calls[0].name == "hand_over"


class Answers:
    """A user with a few answers; the last ends the conversation."""

    calls = ()

    def __init__(self, *answers):
        self._answers = list(answers)

    async def reply(self, messages):
        return self._answers.pop(0)


async def test_the_tasks_own_bounds_end_a_conversation_and_it_is_graded(open_hotel):
    look, ask = ToolCall("get_booking", {"booking_id": "B3"}), Say("Which one?")
    async with open_hotel() as hotel:
        looped = await hotel.play("test_extend_new", *[look] * 9)
        assert (looped.finish, looped.reward) == ("agent_limit", 0.0)
        assert sum(message.role == "assistant" for message in looped.messages) == 6
        tired = await hotel.play("test_extend_new", *[look] * 9, agent_turns=3)
        assert tired.finish == "turn_limit"
        assert (await hotel.play("test_extend_new", ask)).finish == "no_user_llm"

        hotel.environment = replace(hotel.environment, make_user=lambda case: Answers("B3", Ended("user_limit")))
        limited = await hotel.play("test_extend_new", ask, ask)
        assert limited.finish == "user_limit" and limited.messages[-2].content == "B3"
        thanks = Ended("user_done", said="Thanks. <DONE>")
        hotel.environment = replace(hotel.environment, make_user=lambda case: Answers(thanks))
        left = await hotel.play("test_extend_new", ask)
        assert left.finish == "user_done" and left.messages[-1].content == "Thanks. <DONE>"


async def test_fixtures_are_injected(open_hotel):
    async with open_hotel() as hotel:
        assert (await hotel.play("test_fixtures", DONE)).reward == 1.0
        tall = await hotel.play("test_fixtures", ToolCall("change_nights", {"booking_id": "B2", "nights": 7}), DONE)
    assert tall.reward == 0.0


async def test_the_samples_of_a_group_share_one_initialisation_and_nothing_else(open_hotel):
    change = [ToolCall("change_nights", {"booking_id": "B3", "nights": nights}) for nights in (4, 5, 6, 4)]
    rewards = {}
    async with open_hotel(samples=4) as hotel:
        opened = []
        template = hotel.environment.host.template

        def counted(*args, **kwargs):
            opened.append(args)
            return template(*args, **kwargs)

        hotel.environment.host.template = counted

        async def one(sample):
            rewards[sample] = (await hotel.play("test_extend_new", change[sample], DONE, sample=sample)).reward

        async with trio.open_nursery() as nursery:
            for sample in range(4):
                nursery.start_soon(one, sample)
        await one(0)
    assert rewards == {0: 1.0, 1: 0.0, 2: 0.0, 3: 1.0}
    assert len(opened) == 1


async def test_servers_that_fail_are_system_errors(open_hotel, tmp_path):
    (tmp_path / "broken.yaml").write_text(
        "use_internal_servers: false\nservers:\n"
        '  hotel: {type: mcp-process, command: ["{python}", "-c", "raise SystemExit(3)"]}\n'
        '  mailbox: {type: mcp-process, command: ["{python}", "-c", "raise SystemExit(3)"]}\n'
    )
    for samples in (1, 4):
        async with open_hotel(samples, servers=str(tmp_path / "broken.yaml")) as hotel:
            with pytest.raises(
                BackendError, match="the session of thinkingbox/hotel.py:test_cancel could not be opened"
            ):
                await hotel.play("test_cancel")


async def test_the_ranking_that_a_session_tells_is_the_trajectorys(open_hotel):
    class Telling:
        def __init__(self, host):
            self.host = host

        @asynccontextmanager
        async def open(self, *given, **settings):
            async with self.host.open(*given, **settings) as session:
                session.ranking = "theirs"
                yield session

    async with open_hotel() as hotel:
        assert (await hotel.play("test_cancel")).ranking == ""
        hotel.environment = replace(hotel.environment, ranking="ours")
        assert (await hotel.play("test_cancel")).ranking == "ours"
        hotel.environment = replace(hotel.environment, host=Telling(hotel.environment.host))
        assert (await hotel.play("test_cancel")).ranking == "theirs"


async def test_a_test_without_a_judge_is_a_system_error_not_a_no(open_hotel):
    async with open_hotel() as hotel:
        hotel.environment = replace(hotel.environment, make_judge=lambda: NoJudge())
        with pytest.raises(JudgeError, match="no judge here"):
            await hotel.play("test_today", DONE)


class NoJudge:
    calls = decisions = ()

    async def ask(self, method, arguments):
        raise JudgeError("no judge here")


async def test_what_the_judge_denied_is_among_the_reasons(open_hotel):
    class Strict:
        calls = ()

        def __init__(self):
            self.decisions = []

        async def ask(self, method, arguments):
            kept = {"question": arguments[1], "answer": False, "motivation": "it is silent", "clear": False}
            self.decisions.append(kept)
            return False

    async with open_hotel() as hotel:
        hotel.environment = replace(hotel.environment, make_judge=Strict)
        trajectory = await hotel.play("test_today", DONE)
    assert trajectory.reward == 0.0
    assert trajectory.verdict.reasons[-1] == (
        "the judge said no, in no clear form to 'Does the message say that booking B2 stands?': it is silent"
    )
