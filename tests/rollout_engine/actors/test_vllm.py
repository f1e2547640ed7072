"""The client of one vLLM server, against a scripted transport."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest
import trio

from rollout_engine.actors.policy import GenerateRequest, Sampling
from rollout_engine.actors.vllm import ActorBusy, ActorRefusal, VllmActor
from rollout_engine.errors import ActorError

REQUEST = GenerateRequest([5, 6, 7], 3, Sampling(temperature=0.7, top_p=0.9), stop_ids=(2, 3), episode="e", seed=11)


def answer(ids=(8, 9, 2), logprobs=(-0.5, -1.5, -0.25), spans=(("v4", 0, 3),), finish="stop") -> httpx.Response:
    choice = {
        "index": 0,
        "token_ids": list(ids),
        "finish_reason": finish,
        "logprobs": {"content": [{"token_id": i, "logprob": p, "rank": 1} for i, p in zip(ids, logprobs)]},  # noqa: B905
        "weight_versions": [{"version": v, "start": a, "end": b} for v, a, b in spans],
    }
    return httpx.Response(200, json={"request_id": "r", "choices": [choice]})


def actor(handler: Callable[[httpx.Request], httpx.Response], **options) -> VllmActor:
    client = httpx.AsyncClient(transport=httpx.MockTransport(handler))
    return VllmActor("http://actor:8000/", client, timeout=5.0, **options)


async def test_generation_carries_ids_logprobs_and_the_version_of_each_token() -> None:
    generation = await actor(lambda _: answer(spans=[("v4", 0, 2), ("v5", 2, 3)])).generate(REQUEST)
    assert generation.ids == [8, 9, 2]
    assert generation.logprobs == [-0.5, -1.5, -0.25]
    assert generation.versions == [4, 4, 5]
    assert (generation.finish, generation.actor) == ("stop", "http://actor:8000")


async def test_request_asks_for_tokens_only_and_ends_at_our_stop_ids_alone() -> None:
    sent: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return answer()

    await actor(handler).generate(REQUEST)
    assert sent[0].url.path == "/inference/v1/generate"
    assert json.loads(sent[0].content) == {
        "token_ids": [5, 6, 7],
        "sampling_params": {
            "max_tokens": 3,
            "temperature": 0.7,
            "top_k": -1,
            "top_p": 0.9,
            "stop_token_ids": [2, 3],
            "logprobs": 0,
            "detokenize": False,
            "ignore_eos": True,
            "seed": 11,
        },
    }


PROVISIONAL = [
    ([("v4", 0, 3)], [4, 4, 4], None),
    ([("v4", 0, 1), ("v5?", 1, 3)], [4, 5, 5], 5),
    ([("v5?", 0, 2), ("v5", 2, 3)], [5, 5, 5], None),
    ([("v4", 0, 1), ("v5?", 1, 2), ("v5", 2, 3)], [4, 5, 5], None),
]
"""Spans of an answer, the version of each token, and whose proof it awaits: a label says v5 only once v5 is proven."""


@pytest.mark.parametrize(("spans", "versions", "awaited"), PROVISIONAL)
async def test_tokens_of_weights_being_proven_are_held_back_until_they_are(
    spans, versions, awaited, autojump_clock
) -> None:
    asked: list[int] = []

    async def proof(version: int) -> None:
        await trio.sleep(3)
        asked.append(version)

    generation = await actor(lambda _: answer(spans=spans), proof=proof).generate(REQUEST)
    assert generation.versions == versions
    assert asked == ([] if awaited is None else [awaited])
    assert trio.current_time() == 3 * len(asked)


async def test_tokens_whose_proof_failed_are_an_actor_error() -> None:
    async def proof(version: int) -> None:
        raise ActorError("probe refused")

    with pytest.raises(ActorError, match="probe refused"):
        await actor(lambda _: answer(spans=[("v4", 0, 1), ("v5?", 1, 3)]), proof=proof).generate(REQUEST)


async def test_without_anybody_to_ask_for_the_proof_provisional_tokens_are_refused() -> None:
    with pytest.raises(ActorError, match="weights 5 before they were proven"):
        await actor(lambda _: answer(spans=[("v5?", 0, 3)])).generate(REQUEST)


async def test_weights_that_gave_way_to_others_before_their_proof_were_never_proven() -> None:
    with pytest.raises(ActorError, match="weights 5, which were never proven"):
        await actor(lambda _: answer(spans=[("v5?", 0, 2), ("v6", 2, 3)])).generate(REQUEST)


@pytest.mark.parametrize(
    ("status", "header", "seconds"),
    [(429, "7", 7.0), (503, "0.5", 0.5), (503, None, None), (429, "soon", None)],
)
async def test_a_busy_server_says_when_to_ask_again(status, header, seconds) -> None:
    headers = {} if header is None else {"retry-after": header}
    with pytest.raises(ActorBusy) as caught:
        await actor(lambda _: httpx.Response(status, headers=headers)).generate(REQUEST)
    assert caught.value.retry_after == seconds


async def test_a_busy_server_may_give_a_date() -> None:
    header = {"retry-after": format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)}
    with pytest.raises(ActorBusy) as caught:
        await actor(lambda _: httpx.Response(503, headers=header)).generate(REQUEST)
    assert 80 < caught.value.retry_after <= 90


@pytest.mark.parametrize("label", ["default", "unproven", "v", "7"])
async def test_tokens_of_unproven_weights_are_refused(label: str) -> None:
    with pytest.raises(ActorError, match=f"labelled '{label}'"):
        await actor(lambda _: answer(spans=[(label, 0, 3)])).generate(REQUEST)


async def test_caller_may_name_the_version_of_whatever_is_served() -> None:
    generation = await actor(lambda _: answer(spans=[("default", 0, 3)]), version=0).generate(REQUEST)
    assert generation.versions == [0, 0, 0]


async def test_weights_changed_within_one_answer_have_no_single_name() -> None:
    with pytest.raises(ActorError, match="changed its weights"):
        await actor(lambda _: answer(spans=[("v4", 0, 2), ("v5", 2, 3)]), version=0).generate(REQUEST)


@pytest.mark.parametrize(
    "broken",
    [
        answer(ids=(), logprobs=(), spans=()),
        answer(logprobs=(-0.5, -1.5)),
        answer(logprobs=(-0.5, -1.5, -9999.0)),
        answer(spans=[("v4", 0, 2)]),
        answer(finish="abort"),
        httpx.Response(200, content=b"<html>"),
        httpx.Response(200, json={"choices": [{"token_ids": [1], "logprobs": None, "finish_reason": "stop"}]}),
        httpx.Response(200, json={"choices": []}),
    ],
    ids=[
        "no-tokens",
        "missing-logprob",
        "placeholder-logprob",
        "missing-version",
        "aborted",
        "not-json",
        "no-logprobs",
        "no-choice",
    ],
)
async def test_incomplete_answer_is_an_actor_error_not_a_generation(broken: httpx.Response) -> None:
    with pytest.raises(ActorError):
        await actor(lambda _: broken).generate(REQUEST)


@pytest.mark.parametrize(
    ("status", "refusal"), [(400, True), (404, True), (408, False), (429, False), (500, False), (503, False)]
)
async def test_status_tells_whether_another_actor_could_help(status: int, refusal: bool) -> None:
    with pytest.raises(ActorError, match=f"answered {status}: too bad") as caught:
        await actor(lambda _: httpx.Response(status, text="too bad")).generate(REQUEST)
    assert isinstance(caught.value, ActorRefusal) == refusal


@pytest.mark.parametrize(
    "error",
    [
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("slow"),
        httpx.ReadError("cut"),
        httpx.DecodingError("half a gzip stream"),
    ],
)
async def test_lost_connection_and_timeout_are_actor_errors_naming_the_url(error: httpx.RequestError) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise error

    with pytest.raises(ActorError, match="http://actor:8000/inference/v1/generate") as caught:
        await actor(handler).generate(REQUEST)
    assert not isinstance(caught.value, ActorRefusal)


async def test_server_without_the_token_endpoint_is_asked_for_completions() -> None:
    paths: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.path)
        if request.url.path == "/inference/v1/generate":
            return httpx.Response(403, text="disabled")
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "tiny"}]})
        body = json.loads(request.content)
        assert (body["model"], body["prompt"], body["return_token_ids"]) == ("tiny", [5, 6, 7], True)
        logprobs = {"token_logprobs": [-0.5, -0.75], "tokens": ["a", "b"]}
        choice = {"text": "ab", "token_ids": [8, 2], "logprobs": logprobs, "finish_reason": "length"}
        return httpx.Response(200, json={"choices": [choice]})

    policy = actor(handler, version=3)
    for _ in range(2):
        generation = await policy.generate(REQUEST)
        assert (generation.ids, generation.logprobs, generation.versions) == ([8, 2], [-0.5, -0.75], [3, 3])
    assert paths == ["/inference/v1/generate", "/v1/models", "/v1/completions", "/v1/completions"]


async def test_within_a_run_the_token_endpoint_is_a_must() -> None:
    with pytest.raises(ActorRefusal, match="--enable-scale-out"):
        await actor(lambda _: httpx.Response(403, text="disabled")).generate(REQUEST)


@pytest.mark.parametrize("models", [{"data": []}, {"object": "list"}, "no list"])
async def test_a_server_that_names_no_model_is_an_actor_error(models: object) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=models) if request.url.path == "/v1/models" else httpx.Response(404)

    with pytest.raises(ActorError, match="sent an answer that can't be read"):
        await actor(handler, version=3).generate(REQUEST)


TRUNCATED = GenerateRequest([5], 2, Sampling(top_k=3, top_p=0.9), stop_ids=(), episode="e")
NAMED = [{8: -0.25, 4: -1.5, 6: -9999.0}, {9: 0.0, 1: -9999.0, 2: -9999.0}]
"""Candidates of the two tokens 8 and 9."""


def truncated_answer(named=NAMED) -> httpx.Response:
    content = [
        {"logprob": p, "top_logprobs": [{"token_id": id, "logprob": q, "rank": 1} for id, q in others.items()]}
        for p, others in zip((-0.25, 0.0), named, strict=True)
    ]
    spans = [{"version": "v4", "start": 0, "end": 2}]
    choice = {"token_ids": [8, 9], "finish_reason": "length", "logprobs": {"content": content}}
    return httpx.Response(200, json={"choices": [choice | {"weight_versions": spans}]})


async def test_with_truncated_sampling_each_token_comes_with_what_it_was_sampled_from() -> None:
    sent: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return truncated_answer()

    generation = await actor(handler).generate(TRUNCATED)
    assert json.loads(sent[0].content)["sampling_params"]["logprobs"] == 3
    assert (generation.support, generation.logprobs) == ([[8, 4], [9]], [-0.25, 0.0])
    assert (await actor(lambda _: answer()).generate(REQUEST)).support is None


async def test_completions_name_candidates_too() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.path != "/v1/completions":
            return httpx.Response(200, json={"data": [{"id": "tiny"}]}) if request.method == "GET" else CLOSED
        body = json.loads(request.content)
        assert (body["logprobs"], body["return_tokens_as_token_ids"]) == (3, True)
        named = [{f"token_id:{id}": p for id, p in others.items()} for others in NAMED]
        logprobs = {"token_logprobs": [-0.25, 0.0], "top_logprobs": named}
        choice = {"token_ids": [8, 9], "logprobs": logprobs, "finish_reason": "length"}
        return httpx.Response(200, json={"choices": [choice]})

    generation = await actor(handler, version=3).generate(TRUNCATED)
    assert (generation.support, generation.logprobs) == ([[8, 4], [9]], [-0.25, 0.0])


CLOSED = httpx.Response(403, text="disabled")


async def test_an_answer_that_leaves_out_what_was_sampled_from_is_an_actor_error() -> None:
    for named in ([{}, {}], [NAMED[0], {1: -0.5}]):
        with pytest.raises(ActorError, match="doesn't say what was sampled from: no candidates with token"):
            await actor(lambda _, named=named: truncated_answer(named)).generate(TRUNCATED)


async def test_a_server_that_names_too_few_candidates_says_how_to_start_it() -> None:
    text = "Requested sample logprobs of 30, which is greater than max allowed: 20"
    with pytest.raises(ActorRefusal, match="needs --max-logprobs of at least rollout.sampling.top_k.*max allowed: 20"):
        await actor(lambda _: httpx.Response(400, text=text)).generate(TRUNCATED)
