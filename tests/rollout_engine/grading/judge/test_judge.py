import json

import httpx
import pytest

from protocol.config import Judge as JudgeSettings
from protocol.config import Price
from rollout_engine.errors import GraderError, JudgeError
from rollout_engine.grading.judge import METHODS, Judge
from rollout_engine.grading.judge.prompts import REPEATS

CONFIG = JudgeSettings(
    endpoint="http://judge.test/v1", model="wise", price=Price(prompt=2.0, cached=0.5, completion=8.0)
)
MOTIVATED = JudgeSettings(endpoint="http://judge.test/v1", model="wise", form="motivation")


class Endpoint:
    """Answers with the given replies in turn, and keeps the bodies of the requests."""

    def __init__(self, *replies):
        self.replies = list(replies)
        self.bodies = []

    def __call__(self, request):
        self.bodies.append(json.loads(request.content))
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, httpx.Response):
            return reply
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 40}}
        return httpx.Response(200, json={"choices": [{"message": {"content": reply}}], "usage": usage})

    def judge(self, config=CONFIG):
        return Judge(config, httpx.AsyncClient(transport=httpx.MockTransport(self)))


async def test_a_question_about_a_text_in_one_word():
    endpoint = Endpoint("Yes.")
    judge = endpoint.judge()
    assert await judge.text_yesno("It is <b>done</b></message>", "Is it done?") is True
    (body,) = endpoint.bodies
    assert (body["model"], body["temperature"]) == ("wise", 0.0)
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert body["messages"][1]["content"] == (
        "<message>\nIt is &lt;b&gt;done&lt;/b&gt;&lt;/message&gt;\n</message>\nIs it done?"
    )
    assert judge.decisions == [{"question": "Is it done?", "answer": True, "motivation": "", "clear": True}]
    (call,) = judge.calls
    assert (call.role, call.model) == ("judge", "wise")
    assert (call.prompt_tokens, call.completion_tokens, call.cached_tokens) == (100, 10, 40)
    assert call.cost == pytest.approx((60 * 2.0 + 40 * 0.5 + 10 * 8.0) / 1e6)


async def test_a_question_about_a_text_with_motivation():
    endpoint = Endpoint('{"motivation": "It says so.", "answer": "Yes"}', "Yes", "Yes")
    judge = endpoint.judge(MOTIVATED)
    assert await judge.text_yesno("Done.", "Is it done?") is True
    assert '"motivation"' in endpoint.bodies[0]["messages"][0]["content"]
    # An answer that isn't in the form is a No, and is flagged.
    assert await judge.text_yesno_with_motivation("Done.", "Is it?") == {
        "answer": False,
        "motivation": "the answer could not be read",
    }
    assert [(decision["answer"], decision["clear"]) for decision in judge.decisions] == [(True, True), (False, False)]
    assert await judge.text_yesno_legacy("Done.", "Is it?") is True


async def test_the_other_questions():
    endpoint = Endpoint("Yes", "No", "Yes", "NO", "yes")
    judge = endpoint.judge()
    assert await judge.yesno("Is <b> a tag?") is True
    assert await judge.compare_yesno("a<", "b>", "Are they one?") is False
    assert await judge.evaluate_bool("You are strict.", "Is it <so>?") is True
    assert await judge.no_repeat("new", ["old", "new", "never asked"]) is False
    asked = [body["messages"][1]["content"] for body in endpoint.bodies]
    assert asked[0] == "Is <b> a tag?"
    assert asked[1] == "<first>\na&lt;\n</first>\n<second>\nb&gt;\n</second>\nAre they one?"
    assert endpoint.bodies[2]["messages"][0]["content"] == "You are strict." and asked[2] == "Is it <so>?"
    assert asked[3].endswith(REPEATS) and len(asked) == 5
    assert await Endpoint("No").judge().no_repeat("new", ["old"]) is True
    assert await judge.no_repeat("new", []) is True


@pytest.mark.parametrize(
    "fault", [httpx.ConnectError("no route"), httpx.Response(503), httpx.Response(200, text="<html>")]
)
@pytest.mark.parametrize("method", ["yesno", "text_yesno", "no_repeat"])
async def test_a_question_that_cannot_be_asked_is_a_system_error_and_never_a_no(fault, method, autojump_clock):
    judge = Endpoint(*[fault] * 9).judge()
    arguments = {"yesno": ["q"], "text_yesno": ["t", "q"], "no_repeat": ["f", ["s"]]}[method]
    with pytest.raises(JudgeError) as caught:
        await judge.ask(method, arguments)
    assert caught.value.kind == "judge" and isinstance(caught.value, GraderError)
    assert judge.decisions == [] and list(judge.calls) == []


async def test_without_a_judge_a_question_says_how_to_get_one():
    judge = Judge(JudgeSettings(), httpx.AsyncClient())
    with pytest.raises(JudgeError, match="set judge.endpoint and judge.model"):
        await judge.text_yesno("t", "q")
    assert judge.calls == ()


async def test_methods_are_asked_for_as_data():
    judge = Endpoint("Yes", "Yes").judge()
    assert await judge.ask("compare_yesno", ["a", "b", "q"]) is True
    assert await judge.ask("no_repeat", ["a", ["b"]]) is False
    for method, arguments, fault in [
        ("ask", [], "the judge has no 'ask'; it has yesno, "),
        ("calls", [], "the judge has no 'calls'"),
        ("text_yesno", ["t"], "text_yesno takes text, question, not 1 arguments"),
        ("text_yesno", [None, "q"], "text_yesno: text must be text, not None"),
        ("no_repeat", ["a", ["b", 3]], "no_repeat: second_list must be text"),
        ("yesno", [["q"]], "yesno: question must be text"),
    ]:
        with pytest.raises(TypeError, match=fault):
            await judge.ask(method, arguments)
    assert all(hasattr(Judge, method) for method in METHODS)
