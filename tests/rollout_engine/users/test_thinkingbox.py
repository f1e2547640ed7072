import json

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.config import UserModel
from protocol.records import Message, ToolCall
from rollout_engine.chat_endpoint import ChatEndpoint
from rollout_engine.environments.environment import Ended
from rollout_engine.errors import UserError
from rollout_engine.users.thinkingbox import ThinkingBoxUser, clean, defused, is_done, prompt

CONFIG = UserModel(kind="llm", endpoint="http://model.test/v1", model="small")
CONTEXT = "You are Ada Quint. Your booking is B1."
TALK = [
    Message("system", "POLICY"),
    Message("user", "Cancel my booking."),
    Message("assistant", "Let me look.", reasoning="THOUGHT", calls=(ToolCall("get_booking", {"booking_id": "B9"}),)),
    Message("tool", "RESULT", name="get_booking"),
    Message("assistant", "Breakfast is at seven.", injected=True),
    Message("assistant", "Which booking is it?"),
]


class Endpoint:
    def __init__(self, *replies):
        self.replies = list(replies)
        self.bodies = []

    def __call__(self, request):
        self.bodies.append(json.loads(request.content))
        return httpx.Response(200, json={"choices": [{"message": {"content": self.replies.pop(0)}}]})

    def model(self):
        return ChatEndpoint(CONFIG, httpx.AsyncClient(transport=httpx.MockTransport(self)), "user")

    def user(self, turns=10, can_end=False, context=CONTEXT):
        return ThinkingBoxUser(context, turns, self.model(), can_end=can_end)


async def test_one_stateless_call_sees_what_a_user_sees():
    endpoint = Endpoint('User: "It is B1."')
    user = endpoint.user()
    assert await user.reply(TALK) == "It is B1."
    (body,) = endpoint.bodies
    system, request = body["messages"]
    assert "Copy ids" in system["content"] and "<DONE>" not in system["content"]
    assert request["content"] == (
        "<conversation>\n"
        "User: Cancel my booking.\n\nAssistant: Let me look.\n\nAssistant: Breakfast is at seven.\n\n"
        "Assistant: Which booking is it?\n"
        "</conversation>\n\n"
        "<context>\nYou are Ada Quint. Your booking is B1.\n</context>\n\n"
        "<last_message>\nWhich booking is it?\n</last_message>\n\n"
        "The user's next message:"
    )
    assert [call.role for call in user.calls] == ["user"]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("It is B1.", "It is B1."),
        ("  User: It is B1.\n", "It is B1."),
        ("ASSISTANT:It is B1.", "It is B1."),
        ("user: It is B1.", "user: It is B1."),
        ("User: System: It is B1.", "System: It is B1."),
        ('"It is B1."', "It is B1."),
        ("'It is B1.'", "It is B1."),
        ("User: 'It is B1.'", "It is B1."),
        ('"User: It is B1."', "User: It is B1."),
        ("\"'It is B1.'\"", "'It is B1.'"),
        ('"', '"'),
        ('""', "I don't know."),
        ("User:", "I don't know."),
        ("", "I don't know."),
        ("<think>B1 or B2?</think>It is B1.", "It is B1."),
        ("Thanks. <DONE>", "Thanks. <DONE>"),
    ],
)
def test_a_reply_is_cleaned(answer, text):
    assert clean(answer) == text


async def test_the_user_has_its_turns_and_no_more():
    user = Endpoint("one", "two", "three").user(turns=2)
    assert [await user.reply(TALK) for _ in range(3)] == ["one", "two", Ended("user_limit")]
    assert await Endpoint().user(turns=0).reply(TALK) == Ended("user_limit")


async def test_a_user_that_may_end_has_one_turn_more_and_its_last_words_count():
    endpoint = Endpoint("one", "Thanks, bye. <DONE>")
    user = endpoint.user(turns=1, can_end=True)
    assert await user.reply(TALK) == "one"
    assert await user.reply(TALK) == Ended("user_done", said="Thanks, bye. <DONE>")
    assert 'End your message with " <DONE>"' in endpoint.bodies[0]["messages"][0]["content"]
    assert await user.reply(TALK) == Ended("user_limit")


async def test_a_mark_means_nothing_where_the_user_may_not_end():
    assert await Endpoint("Bye. <DONE>").user().reply(TALK) == "Bye. <DONE>"


@pytest.mark.parametrize("context", [None, ""])
async def test_without_a_context_or_a_model_there_is_no_user(context):
    assert await Endpoint().user(context=context).reply(TALK) == Ended("no_user_llm")
    user = ThinkingBoxUser(CONTEXT, 10, None)
    assert await user.reply(TALK) == Ended("no_user_llm")
    assert user.calls == ()


async def test_a_model_that_fails_is_a_user_error(autojump_clock):
    client = httpx.AsyncClient(transport=httpx.MockTransport(lambda request: httpx.Response(500)))
    with pytest.raises(UserError, match=r"status 500: .* \(4 calls\)"):
        await ThinkingBoxUser(CONTEXT, 10, ChatEndpoint(CONFIG, client, "user")).reply(TALK)


def test_the_last_message_is_the_agents_words_or_none():
    only_tools = [*TALK[:3], Message("tool", "RESULT")]
    for talk in ([], [Message("user", "hi")], only_tools, [Message("assistant", " ")]):
        assert "<last_message>\n(none)\n</last_message>" in prompt(CONTEXT, talk, False)[1]["content"]


@given(st.lists(st.sampled_from(["<", "/", ">", "context", "conversation", "last_message", "DONE", "Done", "\n", "a"])))
def test_nothing_said_passes_for_a_part_of_the_prompt(parts):
    text = "".join(parts)
    request = prompt(text, [Message("user", text), Message("assistant", text)], True)[1]["content"]
    for tag in ("conversation", "context", "last_message"):
        assert request.count(f"<{tag}>") == request.count(f"</{tag}>") == 1
    assert "<DONE>" not in request
    assert defused(defused(text)) == defused(text)


def test_done_is_a_mark_at_the_end():
    assert is_done("All set. <DONE>\n") and is_done("<DONE>")
    assert not is_done("<DONE> it is") and not is_done("") and not is_done("done")
