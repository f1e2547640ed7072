import json

import httpx
import pytest

from protocol.config import ConfigError, UserModel
from protocol.records import Message, ToolCall
from rollout_engine.environments.registry import find_task
from rollout_engine.errors import UserError
from rollout_engine.users import LlmUser, make_user
from rollout_engine.users.llm import clean
from rollout_engine.users.scripted import ScriptedUser

TASK = find_task("travel/cancel_booking/train/0")
CONFIG = UserModel(kind="llm", endpoint="http://model.test/v1/", model="small", temperature=0.3)
TALK = [
    Message("user", TASK.opening),
    Message("assistant", calls=(ToolCall("get_booking", {"booking_id": "SECRET"}),)),
    Message("tool", "SECRET"),
    Message("assistant", "which booking ?"),
]


class Endpoint:
    """Answers with the given replies in turn, and keeps the requests."""

    def __init__(self, *replies):
        self.replies = list(replies)
        self.requests = []

    def __call__(self, request):
        self.requests.append(request)
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, str):
            return httpx.Response(200, json={"choices": [{"message": {"content": reply}}]})
        return reply

    def user(self, config=CONFIG):
        return LlmUser(TASK, config, httpx.AsyncClient(transport=httpx.MockTransport(self)))


async def test_one_stateless_call_with_rules_context_and_visible_talk():
    endpoint = Endpoint("booking " + TASK.facts["booking_id"])
    assert await endpoint.user().reply(TALK) == "booking " + TASK.facts["booking_id"]
    (request,) = endpoint.requests
    body = json.loads(request.content)
    assert str(request.url) == "http://model.test/v1/chat/completions"
    assert "authorization" not in request.headers
    assert (body["model"], body["temperature"]) == ("small", 0.3)
    system, user = body["messages"]
    assert system["role"] == "system" and "Never invent" in system["content"]
    assert f"- booking id: {TASK.facts['booking_id']}" in user["content"]
    assert f"Customer: {TASK.opening}\nAgent: which booking ?" in user["content"]
    assert "SECRET" not in request.content.decode()


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("booking B417", "booking B417"),
        ('  "booking B417"\n', "booking B417"),
        ("Customer: booking B417", "booking B417"),
        ("**User:** “booking B417”", "booking B417"),
        ('user: "booking B417"', "booking B417"),
        ('"Customer: booking B417"', "booking B417"),
        ("<think>what do I know?</think>\nbooking B417", "booking B417"),
        ("booking B417\n<think>is that all?", "booking B417"),
        ("<think>what do I know", "I do not know."),
        ("Customer: booking B417\n\nAgent: thank you .\nCustomer: <DONE>", "booking B417"),
        ("**Assistant:** how can I help ?", "I do not know."),
        ("the agent: who is it", "the agent: who is it"),
        ("it is the 'suite'", "it is the 'suite'"),
        ('"', '"'),
        ("", "I do not know."),
        ("Customer:", "I do not know."),
        ('""', "I do not know."),
        ("<DONE>", None),
        ("Thank you, goodbye. <DONE>", None),
        ('"<DONE>"', None),
    ],
)
async def test_answers_are_cleaned(answer, text):
    assert clean(answer) == text
    assert await Endpoint(answer).user().reply(TALK) == text


async def test_a_null_content_is_not_knowing():
    empty = httpx.Response(200, json={"choices": [{"message": {"content": None}}]})
    assert await Endpoint(empty).user().reply(TALK) == "I do not know."


@pytest.mark.parametrize("fault", [httpx.Response(503), httpx.Response(429), httpx.ConnectError("no route")])
async def test_passing_faults_are_retried(fault, autojump_clock):
    endpoint = Endpoint(fault, fault, "yes")
    assert await endpoint.user().reply(TALK) == "yes"
    assert len(endpoint.requests) == 3


async def test_retries_are_bounded(autojump_clock):
    endpoint = Endpoint(*[httpx.ReadTimeout("too slow")] * 9)
    with pytest.raises(UserError, match=r"user model small at .*ReadTimeout: too slow \(4 calls\)"):
        await endpoint.user().reply(TALK)
    assert len(endpoint.requests) == 4


async def test_a_body_that_cannot_be_decoded_is_a_user_error(autojump_clock):
    def broken(request):
        return httpx.Response(200, headers={"content-encoding": "gzip"}, content=b"not gzip")

    user = LlmUser(TASK, CONFIG, httpx.AsyncClient(transport=httpx.MockTransport(broken)))
    with pytest.raises(UserError, match="DecodingError"):
        await user.reply(TALK)


async def test_a_refusal_is_not_retried():
    endpoint = Endpoint(httpx.Response(401, text="bad key"))
    with pytest.raises(UserError, match="status 401: bad key"):
        await endpoint.user().reply(TALK)
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize(
    "reply",
    [
        httpx.Response(200, text="<html>"),
        httpx.Response(200, json={"choices": []}),
        httpx.Response(200, json=[]),
        httpx.Response(200, text="[" * 100_000),
        httpx.Response(200, text='{"choices": [{"message": {"content": "\\ud800"}}]}'),
        httpx.Response(200, json={"choices": [{"message": {"content": 7}}]}),
    ],
)
async def test_an_answer_of_another_shape_is_a_user_error(reply):
    with pytest.raises(UserError, match="user model answered"):
        await Endpoint(reply).user().reply(TALK)


async def test_the_key_comes_from_the_environment(monkeypatch):
    config = UserModel(kind="llm", endpoint="http://model.test", model="small", api_key_env="SOME_KEY")
    monkeypatch.delenv("SOME_KEY", raising=False)
    with pytest.raises(ConfigError, match="SOME_KEY, which is not set"):
        Endpoint().user(config)
    monkeypatch.setenv("SOME_KEY", "abc")
    endpoint = Endpoint("yes")
    await endpoint.user(config).reply(TALK)
    assert endpoint.requests[0].headers["authorization"] == "Bearer abc"


def test_make_user_follows_the_configuration():
    assert isinstance(make_user(UserModel(), TASK), ScriptedUser)
    assert isinstance(make_user(CONFIG, TASK, httpx.AsyncClient()), LlmUser)
    with pytest.raises(ValueError, match="needs an HTTP client"):
        make_user(CONFIG, TASK)
