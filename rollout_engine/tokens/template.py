"""A model folder's tokenizer and chat template, as one thing.

Invariant: the folder is the only source. What the engine renders, encodes and stops on is what the
folder's own ``tokenizer.json``, template and configuration say, or the folder is refused when it is
loaded, with the way out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from tokenizers import Tokenizer

from protocol.records import Message
from rollout_engine.errors import ConfigurationError
from rollout_engine.tokens.encoding import Codec, RenderingError, Segment
from rollout_engine.tokens.jinja import compile_template
from rollout_engine.tokens.messages import template_message, template_tools
from rollout_engine.tokens.rendering import Rendering


class ChatTemplate:
    """Rendering, encoding and decoding for one model.

    ``stop_ids``           ids that end a turn: the template's closing token first, then the folder's ``eos_token_id``.
    ``generation_prompt``  text that opens a turn to be sampled.
    ``reasoning_open``     whether that text ends inside ``<think>``.
    ``close``              text that closes a turn; its first id is ``close_id``.
    """

    def __init__(self, tokenizer: Tokenizer, source: str, *, eos_ids: Iterable[int] = (), variables=None, name="?"):
        try:
            self._template = compile_template(source)
        except jinja2.TemplateError as error:
            raise ConfigurationError(f"the chat template of {name} doesn't compile: {error}") from error
        self._variables = dict(variables or {})
        self._name = name
        self._codec = Codec(tokenizer)
        self._rendering = Rendering(self._render, name)
        self.generation_prompt = self._rendering.generation_prompt
        self.reasoning_open = self.generation_prompt.rstrip().endswith("<think>")
        self.close = self._rendering.close
        first = self._codec.encode(self.close)[:1]
        if not first or not self._codec.is_control(first[0]):
            raise ConfigurationError(
                f"the chat template of {name} closes an assistant turn with {self.close!r}, which doesn't begin with a "
                "special token of its tokenizer; add that token to added_tokens in tokenizer.json"
            )
        self.close_id = first[0]
        self.stop_ids = tuple(dict.fromkeys([self.close_id, *eos_ids]))
        own = self.close + self.generation_prompt
        if self.decode(self.encode(own)) != own:
            raise ConfigurationError(
                f"the tokenizer of {name} can't write its own chat template: {own!r} becomes "
                f"{self.decode(self.encode(own))!r}; use a byte-level tokenizer, with a decoder"
            )

    @classmethod
    def from_folder(cls, path: str | Path) -> ChatTemplate:
        """Load ``tokenizer.json`` and the template (``chat_template.jinja``, else ``tokenizer_config.json``).

        Raises :class:`ConfigurationError` naming the folder, the fault and the way out.
        """
        folder = Path(path)
        if not folder.is_dir():
            raise ConfigurationError(f"model folder {folder} doesn't exist; make one or correct model.folder")
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise ConfigurationError(
                f"model folder {folder} has no tokenizer.json; save the model's fast tokenizer there (save_pretrained)"
            )
        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the tokenizers library raises plain Exception
            raise ConfigurationError(f"{file} can't be read: {error}") from error
        config = _json(folder / "tokenizer_config.json")
        return cls(
            tokenizer,
            _source(folder, config),
            eos_ids=_eos_ids(folder),
            variables=_special_tokens(config),
            name=str(folder),
        )

    def render(
        self,
        messages: Iterable[Message | Mapping[str, Any]],
        tools: Iterable[Mapping[str, Any]] | None = None,
        generation_prompt: bool = False,
    ) -> str:
        """The template's text; raises :class:`RenderingError` when the template refuses the messages."""
        return self._render([template_message(m) for m in messages], template_tools(tools), generation_prompt)

    def encode(self, text: str) -> list[int]:
        """Ids of text in which control tokens are meant (never of text from outside)."""
        return self._codec.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, control tokens included."""
        return self._codec.decode(ids)

    def normalise(self, text: str) -> str:
        """The text as the tokenizer reads it (Unicode normalisation)."""
        return self._codec.normalise(text)

    def encode_segments(self, segments: Sequence[Segment]) -> list[int]:
        """Ids of rendered segments, in which message text can't write control tokens."""
        return self._codec.encode_segments(segments)

    def check_tools(self, text: str) -> None:
        """Raise :class:`ConfigurationError` when the tools' own text spells a special token."""
        for token in self._codec.special:
            if token in text:
                raise ConfigurationError(f"a tool's name or description spells the special token {token}; reword it")

    @property
    def rendering(self) -> Rendering:
        """The template taken apart at sampled turns."""
        return self._rendering

    def _render(self, chat, tools, generation_prompt: bool) -> str:
        try:
            return self._template.render(
                messages=chat, tools=tools, add_generation_prompt=generation_prompt, **self._variables
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
            raise RenderingError(f"the template refuses the messages: {error}") from error


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        tree = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise ConfigurationError(f"{file} is not JSON: {error}") from error
    if not isinstance(tree, dict):
        raise ConfigurationError(f"{file} is not a JSON object")
    return tree


def _source(folder: Path, config: Mapping[str, Any]) -> str:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text("utf-8")
    source = config.get("chat_template")
    if isinstance(source, list):  # several named templates, an older form
        source = {entry.get("name"): entry.get("template") for entry in source}.get("default")
    if not isinstance(source, str):
        raise ConfigurationError(
            f"model folder {folder} has no chat template; put the model's own chat_template.jinja there "
            "(an instruction-tuned model has one, a base model doesn't)"
        )
    return source


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """``bos_token`` and its like, which templates may name."""
    tokens = {}
    for key in ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"):
        value = config.get(key)
        if isinstance(value, Mapping):
            value = value.get("content")
        if isinstance(value, str):
            tokens[key] = value
    return tokens


def _eos_ids(folder: Path) -> list[int]:
    for name in ("generation_config.json", "config.json"):
        value = _json(folder / name).get("eos_token_id")
        if value is not None:
            return value if isinstance(value, list) else [value]
    return []
