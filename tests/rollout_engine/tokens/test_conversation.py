"""The stream only grows, and its text is what the template writes (rules 6 to 8)."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.records import Message, ToolCall
from rollout_engine.actors.policy import Generation
from rollout_engine.tokens.conversation import Conversation

TOOLS = [
    {
        "name": "look",
        "description": "Look up an order",
        "parameters": {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
    }
]
CALL = "<tool_call>\n<function=look>\n<parameter=id>\nB417\n</parameter>\n</function>\n</tool_call>"


def sampled(template, text: str, closed: bool = True, version: int = 3) -> Generation:
    ids = template.encode(text) + ([template.close_id] if closed else [])
    return Generation(ids, [-0.5] * len(ids), [version] * len(ids), "stop" if closed else "length")


def test_a_whole_episode_is_what_the_template_writes(template):
    chat = Conversation(template, "Be kind.", TOOLS)
    chat.observe(Message("user", "Where is B417?"))
    think = "I look.\n</think>\n\n" if template.reasoning_open else ""
    message = chat.add_generation(sampled(template, think + "One moment.\n" + CALL))
    assert message.calls == (ToolCall("look", {"id": "B417"}),)
    assert message.content == "One moment."
    assert message.reasoning == ("I look." if template.reasoning_open else None)
    chat.observe(Message("tool", '{"state": "lost"}', name="look"))
    chat.add_generation(sampled(template, think + "It is lost."))
    chat.observe(Message("user", "Oh."))
    chat.add_generation(sampled(template, think + "Sorry."))
    assert chat.verify() == []
    assert chat.retokenised == 0
    text = template.decode(chat.prompt_ids)
    assert text.count("I look.\n</think>") == (3 if template.reasoning_open else 0)
    assert "One moment.\n" + CALL + "<|im_end|>\n<|im_start|>user\n<tool_response>\n" in text
    assert text.endswith("Sorry.<|im_end|>")
