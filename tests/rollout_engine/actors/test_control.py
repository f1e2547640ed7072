"""The control side's reading of what a server says."""

import json

import httpx
import numpy as np
import pytest

from protocol.records import ActorLoad
from rollout_engine.actors.control import ControlError, ServerControl

METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="policy"} 7.0
vllm:num_requests_running{engine="1",model_name="policy"} 5.0
vllm:num_requests_waiting{engine="0",model_name="policy"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="policy"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="policy"} 0.75
vllm:num_preemptions_total{engine="0",model_name="policy"} 3.0
vllm:num_preemptions_total{engine="1",model_name="policy"} 1.0
vllm:num_preemptions_created{engine="0",model_name="policy"} 1.7e+09
"""


def control(handler) -> ServerControl:
    return ServerControl("http://server:1/", httpx.AsyncClient(transport=httpx.MockTransport(handler)), 5.0)


async def test_the_load_of_several_engine_cores_is_their_sum_and_their_fullest_cache() -> None:
    load = await control(lambda _: httpx.Response(200, text=METRICS)).load()
    assert load == ActorLoad(running=12, waiting=2, kv_use=0.75, preemptions=4)
    assert await control(lambda _: httpx.Response(200, text="")).load() == ActorLoad()


async def test_the_probe_goes_before_whatever_waits() -> None:
    sent: list[dict] = []

    def handler(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content))
        entries = [None, {"6": {"logprob": -0.5}}, {"7": {"logprob": -1.5}}]
        return httpx.Response(200, json={"prompt_logprobs": entries})

    logprobs = await control(handler).logprobs(np.array([5, 6, 7]), 5.0)
    np.testing.assert_array_equal(logprobs, np.array([-0.5, -1.5], np.float32))
    assert sent[0]["priority"] < 0 and sent[0]["sampling_params"]["temperature"] == 1.0


async def test_running_requests_are_kept_over_a_change_of_weights_and_ended_when_it_failed() -> None:
    asked: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(f"{request.url.path}?{request.url.query.decode()}")
        return httpx.Response(200, json={"success": True})

    server = control(handler)
    await server.pause(5.0)
    await server.reset_prefix_cache(5.0)
    await server.abort(5.0)
    assert asked == [
        "/pause?mode=keep&clear_cache=false",
        "/reset_prefix_cache?reset_running_requests=true",
        "/pause?mode=abort&clear_cache=false",
    ]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (httpx.Response(404), "answered 404 .start the server with VLLM_SERVER_DEV_MODE=1."),
        (httpx.Response(500, text="broken"), "/pause.* answered 500: broken"),
    ],
)
async def test_a_call_that_fails_is_named(answer: httpx.Response, message: str) -> None:
    with pytest.raises(ControlError, match=message):
        await control(lambda _: answer).pause(5.0)


async def test_a_call_that_takes_too_long_is_named_with_its_bound() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("slow")

    with pytest.raises(ControlError, match="/resume did not answer within 5 s"):
        await control(handler).resume()


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, text="<html>a web server of somebody else's</html>"),
        httpx.Response(200, json=[]),
        httpx.Response(200, json={}),
        httpx.Response(200, json={"data": [], "prompt_logprobs": [None, None, None]}),
    ],
)
async def test_an_answer_that_is_no_vllm_servers_is_named(answer: httpx.Response) -> None:
    server = control(lambda _: answer)
    for call in [
        server.model(),
        server.weight_label(),
        server.reset_prefix_cache(5.0),
        server.logprobs(np.array([5, 6, 7]), 5.0),
    ]:
        with pytest.raises(ControlError, match="http://server:1/.* is no vLLM server's answer"):
            await call
    garbled = httpx.Response(200, text='vllm:num_requests_running{engine="0"} many')
    with pytest.raises(ControlError, match="/metrics is no vLLM server's answer"):
        await control(lambda _: garbled).load()
