"""A byte-level tokenizer and two ChatML templates in the spirit of Qwen3, written for these tests."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from rollout_engine.tokens.template import ChatTemplate

HEAD = r"""
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}
    {{- 'You may call:' }}
    {%- for tool in tools %}{{- '\n' + (tool | tojson) }}{%- endfor %}
    {{- '\nlike <tool_call>\n<function=NAME>\n…</function>\n</tool_call><|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
"""

CALLS = r"""
        {%- for call in message.tool_calls or [] %}
            {{- '\n<tool_call>\n<function=' + call.function.name + '>\n' }}
            {%- for name, value in call.function.arguments | items %}
                {{- '<parameter=' + name + '>\n' }}
                {{- value if value is string else value | tojson }}
                {{- '\n</parameter>\n' }}
            {%- endfor %}
            {{- '</function>\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
"""

TOOL = r"""
    {%- elif message.role == 'tool' %}
        {%- if loop.previtem is undefined or loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {%- if loop.nextitem is undefined or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- endif %}
"""

PLAIN = (
    HEAD
    + r"""
{%- for message in messages %}
    {%- if message.role == 'system' and not loop.first %}{{- raise_exception('a second system message') }}
    {%- elif message.role == 'user' %}{{- '<|im_start|>user\n' + message.content + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' + message.content }}"""
    + CALLS
    + TOOL
    + r"""
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""
)

THINKING = (
    HEAD
    + r"""
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}{%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- if ns.last < 0 %}{{- raise_exception('no user message') }}{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{{- '<|im_start|>user\n' + message.content | trim + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' }}
        {%- if loop.index0 > ns.last %}
            {{- '<think>\n' + (message.reasoning_content or '') | trim + '\n</think>\n\n' }}
        {%- endif %}
        {{- message.content }}"""
    + CALLS
    + TOOL
    + r"""
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n<think>\n' }}{%- endif %}"""
)

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TAGS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]


def make_tokenizer() -> Tokenizer:
    """Every byte a token, a few merges, Unicode normalised as Qwen's does; ids of special tokens come last."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("i", "n"), ("e", "r"), ("Ġ", "t"), ("Ċ", "Ċ"), ("u", "s"), ("us", "er")]
    vocab = {token: at for at, token in enumerate([*alphabet, *(a + b for a, b in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in TAGS])
    return tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return make_tokenizer()


@pytest.fixture
def make_folder(tmp_path, tokenizer):
    """A function that writes a model folder: ``make_folder(template, **other files as JSON)``."""

    def make(template: str | None, files: dict[str, dict] | None = None) -> Path:
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        if template is not None:
            (tmp_path / "chat_template.jinja").write_text(template)
        for name, tree in (files or {}).items():
            (tmp_path / name).write_text(json.dumps(tree))
        return tmp_path

    return make


@pytest.fixture(scope="session")
def plain(tokenizer) -> ChatTemplate:
    return ChatTemplate(tokenizer, PLAIN, name="plain")


@pytest.fixture(scope="session")
def thinking(tokenizer) -> ChatTemplate:
    """Opens ``<think>`` in the generation prompt, drops old reasoning, strips user messages."""
    return ChatTemplate(tokenizer, THINKING, name="thinking")


@pytest.fixture(params=["plain", "thinking"])
def template(request, plain, thinking) -> ChatTemplate:
    return {"plain": plain, "thinking": thinking}[request.param]


@pytest.fixture
def sources() -> dict[str, str]:
    return {"plain": PLAIN, "thinking": THINKING}
