"""A policy behind one vLLM server.

Invariant: ids in, ids out. What was sampled comes back with its log-probability and its policy version, the
stop id included, and with truncated sampling with what it was sampled from, or :class:`ActorError` is raised; nothing
is ever re-tokenised or filled in.

``/inference/v1/generate`` says which weights sampled which token: ``vN`` are proven, ``vN?`` are loaded and being
proven (rule 20). An answer that ends in the latter is held back until the proof, so weights may change under running
requests. A server without that endpoint (started without ``--enable-scale-out``) is asked by ``/v1/completions``
instead, but only where the caller says what it serves.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

import httpx
import msgspec

from rollout_engine.actors.policy import GenerateRequest, Generation, Sampling
from rollout_engine.actors.support import MISSING, Candidate, read_support
from rollout_engine.chat_endpoint import retry_after
from rollout_engine.errors import ActorError
from rollout_engine.tokens.ids import raw_json

GENERATE = "/inference/v1/generate"
COMPLETIONS = "/v1/completions"
_LABEL = re.compile(r"v(\d+)(\??)")


class ActorRefusal(ActorError):
    """The server judged the request itself bad (4xx): any other actor would say the same."""


class ActorBusy(ActorError):
    """The server is well and has no room now (429, 503): ``retry_after`` says when to ask again, if it told."""


class _Content(msgspec.Struct):
    logprob: float
    top_logprobs: list[Candidate] = []


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
    choices: Annotated[list[_Choice], msgspec.Meta(min_length=1)]


class _CompletionLogprobs(msgspec.Struct):
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float]] | None = None


class _CompletionChoice(msgspec.Struct):
    token_ids: list[int]
    logprobs: _CompletionLogprobs
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    choices: Annotated[list[_CompletionChoice], msgspec.Meta(min_length=1)]


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: Annotated[list[_Model], msgspec.Meta(min_length=1)]


_ENCODER = msgspec.json.Encoder()
_ANSWER = msgspec.json.Decoder(_Answer)
_COMPLETION = msgspec.json.Decoder(_Completion)
_MODELS = msgspec.json.Decoder(_Models)
_JSON = {"content-type": "application/json"}


class VllmActor:
    """:class:`~rollout_engine.actors.policy.Policy` over HTTP.

    ``timeout`` bounds one request in seconds. With ``version`` given, whatever the server holds is called that
    version (probing and evaluation outside a run); without it every token must carry a label. ``proof`` waits until
    the actor has proven a version or raises :class:`ActorError`; without it provisional tokens are refused.
    """

    def __init__(
        self,
        url: str,
        client: httpx.AsyncClient,
        *,
        timeout: float,
        version: int | None = None,
        proof: Callable[[int], Awaitable[None]] | None = None,
    ):
        self.url = url.rstrip("/")
        self._client = client
        self._timeout = timeout
        self._version = version
        self._proof = proof
        self._model: str | None = None
        """Name to ask ``/v1/completions`` for; None while the token endpoint is thought to be there."""

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one turn. Raises :class:`ActorError`; its subclass :class:`ActorRefusal` when no actor would do it,
        :class:`ActorBusy` when this one would later."""
        if self._model is None:
            answer = await self._post(GENERATE, _ENCODER.encode(_generate_body(request)))
            if answer.status_code == 200:
                return await self._read_answer(answer.content, request.sampling)
            if answer.status_code not in (403, 404, 405) or self._version is None:
                raise self._refused(answer)
            self._model = await self._served_model()
        answer = await self._post(COMPLETIONS, _ENCODER.encode(_completion_body(request, self._model)))
        if answer.status_code != 200:
            raise self._refused(answer)
        return self._read_completion(answer.content, request.sampling)

    async def healthy(self) -> bool:
        """Whether ``/health`` answers."""
        try:
            answer = await self._client.get(f"{self.url}/health", timeout=min(5.0, self._timeout))
        except httpx.RequestError:
            return False
        return answer.status_code == 200

    async def _served_model(self) -> str:
        answer = await self._send(self._client.build_request("GET", f"{self.url}/v1/models", timeout=self._timeout))
        if answer.status_code != 200:
            raise self._refused(answer)
        return self._decode(_MODELS, answer.content).data[0].id

    async def _post(self, path: str, body: bytes) -> httpx.Response:
        request = self._client.build_request(
            "POST", self.url + path, content=body, headers=_JSON, timeout=self._timeout
        )
        return await self._send(request)

    async def _send(self, request: httpx.Request) -> httpx.Response:
        try:
            return await self._client.send(request)
        except httpx.TimeoutException as error:
            raise ActorError(f"{request.url} did not answer within {self._timeout:g} s") from error
        except httpx.RequestError as error:
            raise ActorError(f"{request.url}: {error or type(error).__name__}") from error

    def _refused(self, answer: httpx.Response) -> ActorError:
        status = answer.status_code
        hint = ": start it with --enable-scale-out" if status == 403 else ""
        if status == 400 and b"logprobs" in answer.content:
            hint = " (a server of your own needs --max-logprobs of at least rollout.sampling.top_k)"
        said = f"{answer.url} answered {status}{hint}: {answer.content[:500].decode(errors='replace')}"
        if status in (429, 503):
            busy = ActorBusy(said)
            busy.retry_after = retry_after(answer.headers.get("retry-after", "")) or None
            return busy
        return ActorRefusal(said) if 400 <= status < 500 and status != 408 else ActorError(said)

    async def _read_answer(self, body: bytes, sampling: Sampling) -> Generation:
        choice = self._decode(_ANSWER, body).choices[0]
        logprobs = [content.logprob for content in choice.logprobs.content]
        candidates = [content.top_logprobs for content in choice.logprobs.content]
        versions, unproven = self._versions(choice)
        generation = self._generation(choice, logprobs, versions, candidates, sampling)
        if unproven is not None:
            if self._proof is None:
                raise ActorError(f"{self.url} sampled with weights {unproven} before they were proven")
            await self._proof(unproven)
        return generation

    def _read_completion(self, body: bytes, sampling: Sampling) -> Generation:
        choice = self._decode(_COMPLETION, body).choices[0]
        logprobs = [-9999.0 if value is None else value for value in choice.logprobs.token_logprobs]
        candidates = [_by_id(named) for named in choice.logprobs.top_logprobs or [{}] * len(logprobs)]
        versions = [self._version] * len(choice.token_ids)
        return self._generation(choice, logprobs, versions, candidates, sampling)

    def _decode(self, decoder: msgspec.json.Decoder, body: bytes) -> Any:
        try:
            return decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise ActorError(f"{self.url} sent an answer that can't be read: {error}") from error

    def _versions(self, choice: _Choice) -> tuple[list[int], int | None]:
        """The version of each token, and the one whose proof the last tokens still await."""
        spans = choice.weight_versions or []
        if self._version is not None:
            if len(spans) > 1:
                raise ActorError(f"{self.url} changed its weights within one answer")
            return [self._version] * len(choice.token_ids), None
        versions: list[int] = []
        unproven: int | None = None
        for span in spans:
            match = _LABEL.fullmatch(span.version)
            if match is None:
                raise ActorError(f"{self.url} sampled with weights labelled {span.version!r}, which nobody has proven")
            version, waits = int(match[1]), bool(match[2])
            if unproven not in (None, version):
                raise ActorError(f"{self.url} sampled with weights {unproven}, which were never proven")
            unproven = version if waits else None
            versions += [version] * (span.end - span.start)
        return versions, unproven

    def _generation(
        self,
        choice: _Choice | _CompletionChoice,
        logprobs: list[float],
        versions: list[int],
        candidates: list[list[Candidate]],
        sampling: Sampling,
    ) -> Generation:
        count = len(choice.token_ids)
        if not count or len(logprobs) != count or len(versions) != count:
            raise ActorError(
                f"{self.url} sent {count} ids, {len(logprobs)} log-probabilities and {len(versions)} versions"
            )
        if min(logprobs) < MISSING:
            raise ActorError(f"{self.url} sent no log-probability for a sampled token")
        support = None
        if sampling.truncated:
            try:
                support, logprobs = read_support(choice.token_ids, logprobs, candidates, sampling.top_k)
            except ValueError as error:
                raise ActorError(f"{self.url} doesn't say what was sampled from: {error}") from error
        return Generation(choice.token_ids, logprobs, versions, self._finish(choice.finish_reason), self.url, support)

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
        # Of the sampled token alone, or of all that it was sampled from.
        "logprobs": sampling.top_k if sampling.truncated else 0,
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
    return {
        "model": model,
        "prompt": body["token_ids"],
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        **parameters,
    }


def _by_id(named: dict[str, float]) -> list[Candidate]:
    """Candidates by the names that ``return_tokens_as_token_ids`` gives them, ``token_id:7``; others have none."""
    ids = ((name.removeprefix("token_id:"), logprob) for name, logprob in named.items())
    return [Candidate(int(id), logprob) for id, logprob in ids if id.isdecimal()]
