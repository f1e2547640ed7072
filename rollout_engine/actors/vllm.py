"""A policy behind one vLLM server.

Invariant: ids in, ids out. What was sampled comes back with its log-probability and its policy version, the
stop id included, or :class:`ActorError` is raised; nothing is ever re-tokenised or filled in.

``/inference/v1/generate`` says which weights sampled which token. A server without it (started without
``--enable-scale-out``) is asked by ``/v1/completions`` instead, but only where the caller says what it serves.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import httpx
import msgspec

from rollout_engine.actors.policy import GenerateRequest, Generation
from rollout_engine.errors import ActorError
from rollout_engine.tokens.ids import raw_json

GENERATE = "/inference/v1/generate"
COMPLETIONS = "/v1/completions"
_LABEL = re.compile(r"v(\d+)")
_FLOOR = -9998.0
"""vLLM writes -9999 for a log-probability that it doesn't have."""


class ActorRefusal(ActorError):
    """The server judged the request itself bad (4xx): any other actor would say the same."""


class _Content(msgspec.Struct):
    logprob: float


class _Logprobs(msgspec.Struct):
    content: list[_Content]


class _Span(msgspec.Struct):
    version: str
    start: int
    end: int


class _Choice(msgspec.Struct):
    token_ids: list[int]
    logprobs: _Logprobs
    finish_reason: str | None = None
    weight_versions: list[_Span] | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice]


class _CompletionLogprobs(msgspec.Struct):
    token_logprobs: list[float | None]


class _CompletionChoice(msgspec.Struct):
    token_ids: list[int]
    logprobs: _CompletionLogprobs
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    choices: list[_CompletionChoice]


_ENCODER = msgspec.json.Encoder()
_ANSWER = msgspec.json.Decoder(_Answer)
_COMPLETION = msgspec.json.Decoder(_Completion)
_JSON = {"content-type": "application/json"}


class VllmActor:
    """:class:`~rollout_engine.actors.policy.Policy` over HTTP.

    ``timeout`` bounds one request in seconds. With ``version`` given, whatever the server holds is called that
    version (probing and evaluation outside a run); without it every token must carry a proven ``vN`` label.
    """

    def __init__(self, url: str, client: httpx.AsyncClient, *, timeout: float, version: int | None = None):
        self.url = url.rstrip("/")
        self._client = client
        self._timeout = timeout
        self._version = version
        self._model: str | None = None
        """Name to ask ``/v1/completions`` for; None while the token endpoint is thought to be there."""

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one turn. Raises :class:`ActorError`; its subclass :class:`ActorRefusal` when no actor would do it."""
        if self._model is None:
            status, body = await self._post(GENERATE, _ENCODER.encode(_generate_body(request)))
            if status == 200:
                return self._read_answer(body)
            if status not in (403, 404, 405) or self._version is None:
                raise self._refused(GENERATE, status, body)
            self._model = await self._served_model()
        status, body = await self._post(COMPLETIONS, _ENCODER.encode(_completion_body(request, self._model)))
        if status != 200:
            raise self._refused(COMPLETIONS, status, body)
        return self._read_completion(body)

    async def healthy(self) -> bool:
        """Whether ``/health`` answers."""
        try:
            answer = await self._client.get(f"{self.url}/health", timeout=min(5.0, self._timeout))
        except httpx.TransportError:
            return False
        return answer.status_code == 200

    async def _served_model(self) -> str:
        answer = await self._send(self._client.build_request("GET", f"{self.url}/v1/models", timeout=self._timeout))
        if answer.status_code != 200:
            raise self._refused("/v1/models", answer.status_code, answer.content)
        return answer.json()["data"][0]["id"]

    async def _post(self, path: str, body: bytes) -> tuple[int, bytes]:
        request = self._client.build_request(
            "POST", self.url + path, content=body, headers=_JSON, timeout=self._timeout
        )
        answer = await self._send(request)
        return answer.status_code, answer.content

    async def _send(self, request: httpx.Request) -> httpx.Response:
        try:
            return await self._client.send(request)
        except httpx.TimeoutException as error:
            raise ActorError(f"{request.url} did not answer within {self._timeout:g} s") from error
        except httpx.TransportError as error:
            raise ActorError(f"{request.url}: {error or type(error).__name__}") from error

    def _refused(self, path: str, status: int, body: bytes) -> ActorError:
        kind = ActorRefusal if 400 <= status < 500 and status not in (408, 429) else ActorError
        hint = ": start it with --enable-scale-out" if status == 403 else ""
        return kind(f"{self.url}{path} answered {status}{hint}: {body[:500].decode(errors='replace')}")

    def _read_answer(self, body: bytes) -> Generation:
        choice = self._decode(_ANSWER, body).choices[0]
        logprobs = [content.logprob for content in choice.logprobs.content]
        return self._generation(choice, logprobs, self._versions(choice))

    def _read_completion(self, body: bytes) -> Generation:
        choice = self._decode(_COMPLETION, body).choices[0]
        logprobs = [-9999.0 if value is None else value for value in choice.logprobs.token_logprobs]
        return self._generation(choice, logprobs, [self._version] * len(choice.token_ids))

    def _decode(self, decoder: msgspec.json.Decoder, body: bytes) -> Any:
        try:
            return decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise ActorError(f"{self.url} sent an answer that can't be read: {error}") from error

    def _versions(self, choice: _Choice) -> list[int]:
        spans = choice.weight_versions or []
        if self._version is not None:
            if len(spans) > 1:
                raise ActorError(f"{self.url} changed its weights within one answer")
            return [self._version] * len(choice.token_ids)
        versions: list[int] = []
        for span in spans:
            match = _LABEL.fullmatch(span.version)
            if match is None:
                raise ActorError(f"{self.url} sampled with weights labelled {span.version!r}, which nobody has proven")
            versions += [int(match[1])] * (span.end - span.start)
        return versions

    def _generation(
        self, choice: _Choice | _CompletionChoice, logprobs: list[float], versions: list[int]
    ) -> Generation:
        count = len(choice.token_ids)
        if not count or len(logprobs) != count or len(versions) != count:
            raise ActorError(
                f"{self.url} sent {count} ids, {len(logprobs)} log-probabilities and {len(versions)} versions"
            )
        if min(logprobs) < _FLOOR:
            raise ActorError(f"{self.url} sent no log-probability for a sampled token")
        return Generation(choice.token_ids, logprobs, versions, self._finish(choice.finish_reason), self.url)

    def _finish(self, reason: str | None) -> Literal["stop", "length"]:
        if reason == "stop":
            return "stop"
        if reason == "length":
            return "length"
        raise ActorError(f"{self.url} ended a generation for reason {reason!r}")


def _generate_body(request: GenerateRequest) -> dict[str, Any]:
    sampling = request.sampling
    parameters = {
        "max_tokens": request.max_tokens,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "stop_token_ids": request.stop_ids,
        # Of the sampled token alone.
        "logprobs": 0,
        "detokenize": False,
        # The model folder's idea of an end is not ours: stop_ids is the whole truth.
        "ignore_eos": True,
    }
    if request.seed is not None:
        parameters["seed"] = request.seed
    return {"token_ids": raw_json(request.prompt_ids), "sampling_params": parameters}


def _completion_body(request: GenerateRequest, model: str) -> dict[str, Any]:
    body = _generate_body(request)
    parameters = body["sampling_params"]
    del parameters["detokenize"]
    return {"model": model, "prompt": body["token_ids"], "return_token_ids": True, **parameters}
