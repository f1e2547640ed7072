"""What an agent reads of a call whose answer is told to the user in words of the scenario."""

import pytest

from rollout_engine.environments.thinkingbox.dataset import ToolOverride
from rollout_engine.environments.thinkingbox.tools import FAILED_DIRECT, Toolbox, _changed
from rollout_engine.errors import ConfigurationError
from rollout_engine.sessions.results import CallResult, ToolSpec


def answer(template, text):
    box = Toolbox(listed=None, ending=frozenset(), direct={"ask": template}, builtin=frozenset())
    return box.answer("ask", CallResult(text, [{"type": "text", "text": text}]))


def test_a_direct_response_is_filled_from_the_answer():
    told = answer("Room {room}.", '{"room": "12 caf\\udce9"}')
    assert (told.direct, told.is_error) == ("Room 12 caf?.", False)


@pytest.mark.parametrize(
    "template, text",
    [
        ("{room}", "no JSON"),
        ("{room}", "[]"),
        ("{room}", "{}"),
        ("{room}", '{"room": ' + "[" * 100_000),
        ("{room.door}", '{"room": 1}'),
        ("{", '{"room": 1}'),
    ],
)
def test_an_answer_that_does_not_fit_is_an_error_of_the_call(template, text):
    told = answer(template, text)
    assert (told.text, told.is_error, told.direct) == (FAILED_DIRECT, True, None)


@pytest.mark.parametrize("properties", [{}, {"room": True}])
def test_words_about_a_parameter_that_cannot_have_any_are_refused(properties):
    tool = ToolSpec("book", "Book.", {"type": "object", "properties": properties}, "hotel")
    override = ToolOverride(name="book", override_arg_description={"room": "Its number."})
    with pytest.raises(ConfigurationError, match="override_arg_description of tool 'book': no parameter 'room'"):
        _changed(tool, override)
