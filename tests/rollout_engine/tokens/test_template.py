"""A model folder is used as it is, or refused with the way out."""

import json

import pytest

from protocol.records import Message, ToolCall
from rollout_engine.errors import ConfigurationError
from rollout_engine.tokens.encoding import RenderingError
from rollout_engine.tokens.template import ChatTemplate

TOOLS = [{"name": "look", "description": "Größe <b>", "parameters": {"type": "object", "properties": {}}}]


def test_a_folder_with_a_template_file(make_folder, sources):
    template = ChatTemplate.from_folder(make_folder(sources["thinking"]))
    assert template.generation_prompt == "<|im_start|>assistant\n<think>\n"
    assert template.reasoning_open
    assert template.close == "<|im_end|>\n"
    assert [template.decode([i]) for i in template.stop_ids] == ["<|im_end|>"]


def test_stop_ids_join_the_template_and_the_configuration(make_folder, sources, tokenizer):
    end, close = tokenizer.token_to_id("<|endoftext|>"), tokenizer.token_to_id("<|im_end|>")
    files = {"generation_config.json": {"eos_token_id": [close, end]}, "config.json": {"eos_token_id": 0}}
    assert ChatTemplate.from_folder(make_folder(sources["plain"], files)).stop_ids == (close, end)
    (make_folder(sources["plain"]) / "generation_config.json").unlink()
    assert ChatTemplate.from_folder(make_folder(sources["plain"])).stop_ids == (close, 0)


@pytest.mark.parametrize("named", [True, False])
def test_the_template_may_stand_in_the_tokenizer_configuration(make_folder, sources, named):
    source = sources["plain"].replace("'<|im_end|>", "eos_token + '")
    entry = [{"name": "default", "template": source}] if named else source
    config = {"chat_template": entry, "eos_token": {"content": "<|im_end|>"}}
    template = ChatTemplate.from_folder(make_folder(None, {"tokenizer_config.json": config}))
    assert template.close == "<|im_end|>\n"
    assert not template.reasoning_open


def test_messages_reach_the_template_in_the_usual_shape(plain):
    call = Message(
        "assistant", "So.", "hm", (ToolCall("look", {"a": [1, "é"], "b": "<x>"}), ToolCall("bad", error="no"))
    )
    text = plain.render([Message("user", "Hi"), call, {"role": "user", "content": "plain dict"}], TOOLS)
    assert 'You may call:\n{"type": "function", "function": {"name": "look", "description": "Größe <b>"' in text
    assert '<parameter=a>\n[1, "é"]\n</parameter>\n<parameter=b>\n<x>\n</parameter>\n</function>' in text
    assert "<function=bad>\n</function>" in text
    assert text.endswith("<|im_start|>user\nplain dict<|im_end|>\n")


def test_the_environment_is_that_of_hugging_face(tokenizer, sources):
    extra = (
        "{%- for x in [1, 2] %}{% if x == 2 %}{% break %}{% endif %}{% endfor %}{% generation %}{% endgeneration %}"
        "{{- '' if strftime_now('%Y') | int > 2000 else raise_exception('no') }}"
    )
    ChatTemplate(tokenizer, extra + sources["plain"])
    with pytest.raises(ConfigurationError, match="immutable|unsafe|not allowed|safely|sandbox"):
        ChatTemplate(tokenizer, "{{ messages.append(1) }}" + sources["plain"])


def test_what_a_template_refuses_is_a_system_error_with_its_words(plain, thinking):
    with pytest.raises(RenderingError, match="a second system message") as caught:
        plain.render([Message("system", "a"), Message("system", "b")])
    assert caught.value.kind == "template"
    with pytest.raises(RenderingError, match="no user message"):
        thinking.render([Message("system", "a")])


def test_folders_that_cannot_be_used(make_folder, sources, tmp_path):
    def refused(folder, why):
        with pytest.raises(ConfigurationError, match=why) as caught:
            ChatTemplate.from_folder(folder)
        assert str(tmp_path) in str(caught.value)

    refused(tmp_path / "nowhere", "doesn't exist")
    refused(make_folder(None), "has no chat template; put the model's own chat_template.jinja there")
    refused(make_folder("{% if %}"), "doesn't compile")
    refused(make_folder(sources["plain"], {"config.json": []}), "not a JSON object")
    (tmp_path / "config.json").write_text("{")
    refused(tmp_path, "is not JSON")
    (tmp_path / "tokenizer.json").write_text("{}")
    refused(tmp_path, "tokenizer.json can't be read")
    (tmp_path / "tokenizer.json").unlink()
    refused(tmp_path, "has no tokenizer.json")


CHATML = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("hello", "no generation prompt"),
        (CHATML.replace("{%- if add_generation_prompt %}", "{%- if false %}"), "no generation prompt"),
        (CHATML.replace("'<|im_start|>' +", "loop.index ~ '<|im_start|>' +"), "opens an assistant turn in a way"),
        (CHATML.replace("in messages", "in messages[-6:]"), "doesn't write every assistant turn"),
        (
            CHATML.replace("message.content", "message.content[:400]"),
            "rewrites the content of a message",
        ),
        (CHATML.replace("message.content", "(message.content | upper)"), "doesn't write an assistant turn once"),
        (CHATML.replace("message.content", "(message.content ~ (' (late)' if loop.index > 8 else ''))"), "rewrite"),
        ("{%- if tools and messages | length > 4 %}TOOLS{%- endif %}" + CHATML, "never rewrites what it has written"),
        (CHATML.replace("<|im_end|>\\n", "\\n"), "doesn't begin with a special token"),
        (
            "{%- if messages[-1].role == 'tool' %}{{- raise_exception('no tools here') }}{%- endif %}" + CHATML,
            "no tools here",
        ),
    ],
)
def test_a_template_whose_deltas_cannot_be_verified_is_refused(tokenizer, source, why):
    ChatTemplate(tokenizer, CHATML)
    with pytest.raises(ConfigurationError, match=why):
        ChatTemplate(tokenizer, source, name="nasty")


def test_a_template_that_writes_content_as_json_is_followed(tokenizer):
    template = ChatTemplate(
        tokenizer,
        CHATML.replace(
            "message.content +", "(message.content | tojson if message.role == 'tool' else message.content) +"
        ),
    )
    segments = template.rendering.delta([{"role": "tool", "content": 'a"b<|im_end|>'}])
    assert segments[1] == (json.dumps('a"b<|im_end|>')[1:-1], True)


def test_a_tokenizer_that_cannot_write_the_template_is_refused(tokenizer):
    from tokenizers import Tokenizer

    spaced = Tokenizer.from_str(tokenizer.to_str())
    spaced.decoder = None
    with pytest.raises(ConfigurationError, match="can't write its own chat template"):
        ChatTemplate(spaced, CHATML)
