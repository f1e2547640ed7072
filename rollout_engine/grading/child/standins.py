"""Stand-ins for the modules that task tests import, so that a grader starts in milliseconds.

Invariant: standard library only; the same names, fields and methods as tests know them. What a judge or a session is
asked goes through ``ask``, which the run of a test sets: it sends the question to the engine and waits for the answer.
"""

from __future__ import annotations

import json
import sys
import types

import rubrics


class _Record:
    """A plain record: fields by keyword, compared and shown by value."""

    T = ""
    _fields: dict = {}

    def __init__(self, **values):
        for name, default in self._fields.items():
            setattr(self, name, values.pop(name, default() if callable(default) else default))
        if values:
            raise TypeError(f"{type(self).__name__} has no field {sorted(values)[0]!r}")

    def __eq__(self, other):
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None

    def __repr__(self):
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def model_dump(self):
        return {"T": self.T} | {name: _plain(value) for name, value in vars(self).items()}


def _plain(value):
    if isinstance(value, _Record):
        return value.model_dump()
    return [_plain(item) for item in value] if isinstance(value, list) else value


class Message(_Record):
    T = "Message"
    _fields = {"metadata": dict}


class Text(Message):
    T = "Text"
    _fields = {"role": "user", "content": "", "metadata": dict}

    @property
    def tag(self):
        return self.metadata.get("tag", "text")

    @property
    def is_visible(self):
        return self.tag != "think"


class ToolCall(Message):
    T = "ToolCall"
    _fields = {"name": "", "arguments": dict, "id": "", "metadata": dict}


class ParallelToolCall(Message):
    T = "ParallelToolCall"
    _fields = {"tool_calls": list, "metadata": dict}


class ToolResponse(Message):
    T = "ToolResponse"
    _fields = {"name": "", "content": "", "id": "", "metadata": dict}


class ToolCallResponse(_Record):
    T = "ToolCallResponse"
    _fields = {"tool_call": None, "tool_response": None}


_MESSAGES = {kind.T: kind for kind in (Text, ToolCall, ParallelToolCall, ToolResponse)}


def message(data):
    """A message from its JSON, told by ``T``."""
    data = dict(data)
    kind = _MESSAGES[data.pop("T")]
    if kind is ParallelToolCall:
        data["tool_calls"] = [message(call) for call in data["tool_calls"]]
    return kind(**data)


class TestContext(_Record):
    """What a test looks at: the conversation, the tools' effects, what init returned."""

    __test__ = False
    _fields = {
        "response": "",
        "tool_direct_responses": list,
        "effects": dict,
        "tool_calls": list,
        "messages": list,
        "init_result": dict,
        "session_id": "",
        "metadata": dict,
    }

    @classmethod
    def of(cls, data):
        data = dict(data)
        data["messages"] = [message(item) for item in data.get("messages", ())]
        data["tool_calls"] = [
            ToolCallResponse(tool_call=message(pair["tool_call"]), tool_response=message(pair["tool_response"]))
            for pair in data.get("tool_calls", ())
        ]
        return cls(**data)

    def _talk(self):
        """Messages that a user sees."""
        return [
            item
            for item in self.messages
            if isinstance(item, Text)
            and item.role in ("user", "assistant")
            and item.is_visible
            and not item.metadata.get("is_dummy")
        ]

    def transcript(self, limit=0):
        """The visible conversation; with a limit, its end, back to that many messages of the assistant."""
        if limit < 0:
            raise ValueError("limit must be >= 0")
        talk, left = self._talk(), limit
        if limit:
            for start in range(len(talk) - 1, -1, -1):
                left -= talk[start].role == "assistant"
                if not left:
                    talk = talk[start:]
                    break
        label = {"user": "User", "assistant": "Assistant"}
        return "\n\n".join(f"{label[item.role]}: {item.content}" for item in talk)

    def query(self):
        """The user's first message."""
        for item in self._talk():
            if item.role == "user":
                return item.content
        raise ValueError("No user message found in messages")


class Judge:
    """Every question goes to the engine, which asks the model."""

    def __init__(self, ask):
        self._ask = ask

    def text_yesno(self, text, question):
        return self._ask("judge", "text_yesno", [text, question])

    def text_yesno_legacy(self, text, question):
        return self._ask("judge", "text_yesno_legacy", [text, question])

    def text_yesno_with_motivation(self, text, question):
        return self._ask("judge", "text_yesno_with_motivation", [text, question])

    def compare_yesno(self, first, second, question):
        return self._ask("judge", "compare_yesno", [first, second, question])

    def yesno(self, question):
        return self._ask("judge", "yesno", [question])

    def no_repeat(self, first, second_list):
        return self._ask("judge", "no_repeat", [first, list(second_list)])

    def evaluate_bool(self, system, user):
        return self._ask("judge", "evaluate_bool", [system, user])


class SessionClientFixture:
    """Calls tools of the session, which is still open; the engine carries them out, whatever ``endpoint`` says."""

    ask = None

    def __init__(self, endpoint="", timeout=120.0):
        self.session_id = None

    def set_session(self, session_id):
        self.session_id = session_id

    def call_tool(self, server_name, tool_name, arguments):
        return type(self).ask("session", "call_on", [server_name, tool_name, arguments])

    def call_json_tool(self, server_name, tool_name, arguments):
        result = json.loads(self.call_tool(server_name, tool_name, arguments))
        if not isinstance(result, (dict, list)):
            raise ValueError(f"Result is not dict or list: {result!r}")
        return result


def install():
    """Put the stand-ins where tests import them from."""

    def module(name, **contents):
        made = types.ModuleType(name, "A stand-in of the grader's.")
        vars(made).update(contents)
        made.__path__ = []
        parent, _, leaf = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], leaf, made)
        sys.modules[name] = made

    kinds = (Message, Text, ToolCall, ParallelToolCall, ToolResponse, ToolCallResponse, TestContext)
    module("thinkingbox")
    module("thinkingbox.common", TestContext=TestContext, Judge=Judge, SessionClientFixture=SessionClientFixture)
    module("thinkingbox.common.chat_types", **{kind.__name__: kind for kind in kinds})
    module("thinkingbox.common.judge", Judge=Judge)
    module(
        "thinkingbox.common.rubrics_judge", **{name: value for name, value in vars(rubrics).items() if name[0] != "_"}
    )
    module("thinkingbox.common.config_types", RubricConfig=rubrics.RubricConfig)
    module("thinkingbox.common.mcp_proxy_client", SessionClientFixture=SessionClientFixture)
