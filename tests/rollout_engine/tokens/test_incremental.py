"""The n-th turn of an episode costs what its own text costs: work is counted, not timed."""

from collections import Counter

import pytest

from protocol.records import Message
from rollout_engine.actors.policy import Generation
from rollout_engine.tokens import ids, toolset
from rollout_engine.tokens.conversation import Conversation
from rollout_engine.tokens.ids import raw_json
from rollout_engine.tokens.template import ChatTemplate

TOOLS = [{"name": "look", "description": "Look", "parameters": {"type": "object", "properties": {}}}]
CALL = "<tool_call>\n<function=look>\n</function>\n</tool_call>"


class Counting:
    """A tokenizer that counts the characters it encodes and the ids it decodes."""

    def __init__(self, tokenizer, work):
        self._tokenizer, self._work = tokenizer, work

    def encode(self, text, **options):
        self._work["encoded"] += len(text)
        return self._tokenizer.encode(text, **options)

    def decode(self, ids, *options, **named):
        self._work["decoded"] += len(ids)
        return self._tokenizer.decode(ids, *options, **named)

    def __getattr__(self, name):
        return getattr(self._tokenizer, name)


@pytest.fixture
def work():
    return Counter()


@pytest.fixture(params=["plain", "thinking"])
def counted(request, tokenizer, sources, work, monkeypatch):
    template = ChatTemplate(Counting(tokenizer, work), sources[request.param], name=request.param)
    render = template._rendering._render

    def rendering(chat, tools, generation_prompt):
        text = render(chat, tools, generation_prompt)
        work["rendered"] += len(text)
        work["messages"] += len(chat)
        return text

    template._rendering._render = rendering
    real = ids.msgspec.json.encode

    def written(value):
        work["written"] += len(value)
        return real(value)

    monkeypatch.setattr(ids.msgspec.json, "encode", written)
    return template


def test_every_turn_of_a_long_episode_does_the_same_work(counted, work):
    chat = Conversation(counted, "Be kind.", toolset.prepare(TOOLS))
    chat.observe(Message("user", "Where is B417?"))
    ids = [*counted.encode("</think>\n\nOne moment.\n" + CALL), counted.close_id]
    turns = []
    for _ in range(100):
        work.clear()
        chat.add_generation(Generation(ids, [-0.5] * len(ids), [0] * len(ids), "stop"))
        chat.observe(Message("tool", '{"state":"lost"}', name="look"))
        raw_json(chat.prompt_ids)
        turns.append(dict(work))
    # The first request writes the first prompt, and the first delta its layout.
    assert all(turn == turns[2] for turn in turns[2:]), turns[2:]
    assert turns[2]["written"] < len(ids) + 60 and turns[2]["decoded"] < len(ids) + 1
    assert len(chat.prompt_ids) > 50 * turns[2]["written"]


def test_tools_are_compiled_and_laid_out_once_for_all_episodes(counted, work, monkeypatch):
    compiled = []
    real = toolset._compile
    monkeypatch.setattr(toolset, "_compile", lambda text: compiled.append(1) or real(text))
    monkeypatch.setattr(toolset, "_prepared", type(toolset._prepared)())
    rendered = []
    for at in range(5):
        work.clear()
        Conversation(counted, "Be kind.", TOOLS).observe(Message("user", f"Where is B41{at}?"))
        rendered.append(work["rendered"])
    assert len(compiled) == 1
    assert rendered[1] < 0.6 * rendered[0] and len(set(rendered[1:])) == 1
