import email.utils
import json
import time

import httpx
import pytest
import trio

from protocol.config import ChatModel, Price
from rollout_engine.chat_endpoint import ChatEndpoint, retry_after
from rollout_engine.errors import UserError

CONFIG = ChatModel(endpoint="http://model.test/v1", model="small", retries=2, timeout=7.0, max_retry_after=20.0)
ASK = [{"role": "user", "content": "?"}]


def answer(content, **usage):
    return httpx.Response(200, json={"choices": [{"message": {"content": content}}], **usage})


def endpoint(*replies, config=CONFIG, bodies=None):
    left = list(replies)

    async def reply(request):
        if bodies is not None:
            bodies.append(json.loads(request.content))
        following = left.pop(0)
        if isinstance(following, Exception):
            raise following
        if following == "hang":
            await trio.sleep_forever()
        return following

    return ChatEndpoint(config, httpx.AsyncClient(transport=httpx.MockTransport(reply)), "user")


@pytest.mark.parametrize(
    ("header", "seconds"),
    [({"retry-after": "12"}, 12.0), ({"retry-after": "0"}, 0.5), ({"retry-after": "soon"}, 0.5), ({}, 0.5)],
)
async def test_a_pause_that_is_asked_for_is_kept(header, seconds, autojump_clock):
    model = endpoint(httpx.Response(429, headers=header), answer("yes"))
    assert await model.complete(ASK) == "yes"
    assert trio.current_time() == pytest.approx(seconds)
    assert model.calls[0].seconds == pytest.approx(seconds)


async def test_a_pause_beyond_the_bound_is_an_error_at_once(autojump_clock):
    with pytest.raises(UserError, match=r"it asks for a pause of 21 s, above max_retry_after") as asked:
        await endpoint(httpx.Response(429, headers={"retry-after": "21"})).complete(ASK)
    assert trio.current_time() == 0.0
    assert asked.value.retry_after == 21.0, "whoever runs the sample again waits for as long"


@pytest.mark.parametrize(
    ("last", "seconds"), [(httpx.Response(503, headers={"retry-after": "9"}), 9.0), (httpx.ReadError("cut"), None)]
)
async def test_a_pause_that_the_last_answer_asked_for_goes_with_the_error(last, seconds, autojump_clock):
    busy = httpx.Response(429, headers={"retry-after": "3"})
    with pytest.raises(UserError, match=r"\(3 calls\)") as asked:
        await endpoint(busy, busy, last).complete(ASK)
    assert asked.value.retry_after == seconds


def test_a_date_is_a_pause_too():
    assert retry_after(email.utils.formatdate(time.time() + 30, usegmt=True)) == pytest.approx(30, abs=2)
    assert retry_after(email.utils.formatdate(time.time() - 30, usegmt=True)) == 0.0


async def test_pauses_double_and_retries_are_bounded(autojump_clock):
    with pytest.raises(UserError, match=r"status 500: .* \(3 calls\)"):
        await endpoint(*[httpx.Response(500)] * 3).complete(ASK)
    assert trio.current_time() == pytest.approx(0.5 + 1.0)


async def test_an_endpoint_that_does_not_answer_is_left_in_time(autojump_clock):
    model = endpoint("hang", "hang", answer("late"))
    assert await model.complete(ASK) == "late"
    assert trio.current_time() == pytest.approx(7.0 + 0.5 + 7.0 + 1.0)
    with pytest.raises(UserError, match=r"no answer within 7 s \(3 calls\)"):
        await endpoint("hang", "hang", "hang").complete(ASK)


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 2}, (9, 2, 0)),
        ({"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}, (9, 2, 4)),
        ({"prompt_tokens": 9, "completion_tokens": None, "prompt_tokens_details": None}, (9, 0, 0)),
        ({"prompt_tokens": "9", "completion_tokens": -2}, (0, 0, 0)),
        (None, (0, 0, 0)),
        ([], (0, 0, 0)),
    ],
)
async def test_tokens_are_what_the_endpoint_says(usage, tokens):
    model = endpoint(answer("yes", usage=usage))
    await model.complete(ASK)
    (call,) = model.calls
    assert (call.prompt_tokens, call.completion_tokens, call.cached_tokens) == tokens


async def test_the_price_is_of_a_million_tokens():
    config = ChatModel(endpoint="http://model.test", model="m", price=Price(prompt=3.0, cached=1.0, completion=15.0))
    usage = {"prompt_tokens": 1000, "completion_tokens": 200, "prompt_tokens_details": {"cached_tokens": 600}}
    model = endpoint(answer("yes", usage=usage), config=config)
    await model.complete(ASK)
    assert model.calls[0].cost == pytest.approx((400 * 3.0 + 600 * 1.0 + 200 * 15.0) / 1e6)


async def test_a_bound_on_tokens_is_sent_where_it_is_set_and_any_text_can_be():
    bodies = []
    await endpoint(answer("yes"), bodies=bodies).complete([{"role": "user", "content": "half \ud83d a pair"}])
    limited = ChatModel(endpoint="http://model.test", model="m", max_tokens=64)
    await endpoint(answer("yes"), config=limited, bodies=bodies).complete(ASK)
    assert bodies[0]["messages"][0]["content"] == "half \ud83d a pair"
    assert "max_completion_tokens" not in bodies[0] and bodies[1]["max_completion_tokens"] == 64
