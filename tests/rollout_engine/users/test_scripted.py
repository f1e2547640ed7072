import pytest

from protocol.records import Message, ToolCall
from rollout_engine.environments.catalogue import DOMAINS
from rollout_engine.environments.registry import generate
from rollout_engine.environments.task import Say
from rollout_engine.environments.texts import FINAL_TEXTS, QUESTIONS
from rollout_engine.users import scripted_user
from rollout_engine.users.scripted import ScriptedUser

USER = ScriptedUser({"booking_id": "B417", "room": "suite"})


def talk(*texts):
    """Alternating messages, the user's opening first."""
    return [Message("user" if index % 2 == 0 else "assistant", text) for index, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("agent", "answer"),
    [
        ("which booking ?", "booking B417 ."),
        ("Which Booking?", "booking B417 ."),
        ("which room ?", "suite ."),
        ("which room , and for which booking ?", "suite . booking B417 ."),
        ("which booking , booking or booking ?", "booking B417 ."),
        ("which planet ?", "i do not know ."),
        ("?", "i do not know ."),
        ("all done .", None),
        ("your booking is fine .", None),
        ("", None),
    ],
)
async def test_answers_what_is_asked_and_ends_otherwise(agent, answer):
    assert await USER.reply(talk("please cancel my booking .", agent)) == answer


async def test_facts_that_share_a_word_are_told_together():
    user = ScriptedUser({"old_room": "suite", "new_room": "single", "booking_id": "B417", "other_booking_id": "B218"})
    assert await user.reply(talk("hello", "which room ?")) == "suite . single ."
    assert await user.reply(talk("hello", "which booking ?")) == "booking B417 . booking B218 ."


async def test_tool_messages_are_not_seen():
    messages = [
        Message("user", "hello"),
        Message("assistant", calls=(ToolCall("get_booking", {}),)),
        Message("tool", "which booking ?"),
        Message("assistant", "which room ?"),
    ]
    assert await USER.reply(messages) == "suite ."


async def test_ends_after_a_bounded_number_of_answers():
    messages = talk("hello", "which booking ?")
    answers = 0
    while (reply := await USER.reply(messages)) is not None:
        answers += 1
        messages += [Message("user", reply), Message("assistant", "which booking ?")]
    assert answers == 6


@pytest.mark.parametrize("task", generate(DOMAINS, "train", 60), ids=lambda task: task.id)
async def test_every_question_of_a_script_is_answered_with_its_fact(task):
    user = scripted_user(task)
    for turn in task.script:
        if isinstance(turn, Say):
            reply = await user.reply(talk(task.opening, turn.text))
            if turn.text in FINAL_TEXTS:
                assert reply is None
            else:
                (fact,) = [fact for fact, question in QUESTIONS.items() if question == turn.text]
                assert task.facts[fact] in reply.split()
