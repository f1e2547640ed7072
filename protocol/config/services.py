"""Models behind chat endpoints: the simulated user and the judge."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from protocol.config.section import Seconds, Section


class Price(Section):
    """Price of a million tokens, in whatever currency."""

    prompt: Annotated[float, Meta(ge=0)] = 0.0
    cached: Annotated[float, Meta(ge=0)] = 0.0
    """Of prompt tokens that the endpoint had cached."""
    completion: Annotated[float, Meta(ge=0)] = 0.0


class ChatModel(Section):
    """A model behind an OpenAI-compatible chat endpoint."""

    endpoint: str = ""
    """Base URL, for example http://127.0.0.1:8000/v1."""
    model: str = ""
    api_key_env: str = ""
    """Name of the environment variable that holds the key."""
    temperature: Annotated[float, Meta(ge=0)] = 0.0
    max_tokens: Annotated[int, Meta(ge=0)] = 0
    """Of an answer; 0: the endpoint's own bound."""
    timeout: Seconds = 60.0
    """Bound on one request."""
    retries: Annotated[int, Meta(ge=0)] = 3
    """Requests after the first, on a lost connection and on a status that passes."""
    max_retry_after: Seconds = 60.0
    """An endpoint that asks for a longer pause than this isn't asked again."""
    price: Price = Price()


class UserModel(ChatModel):
    kind: Literal["scripted", "llm"] = "scripted"
    """``llm`` needs an endpoint and a model."""
    temperature: Annotated[float, Meta(ge=0)] = 0.3
    can_end: bool = False
    """ThinkingBox tasks: whether the user, too, may end the conversation; it then has one turn more."""


class Judge(ChatModel):
    """The model that answers yes or no about texts, for tests that ask it."""

    kind: Literal["llm", "agreeable"] = "llm"
    """``agreeable`` says yes to everything without a model: for checks and load tests that scripts play, and refused
    elsewhere."""
    form: Literal["word", "motivation"] = "word"
    """What a question about a text is answered with: one word, or JSON with a motivation."""
