import pytest

from rollout_engine.grading.judge.answers import UNREADABLE, Answer, read_motivation, read_word


@pytest.mark.parametrize(
    ("text", "value", "clear"),
    [
        ("Yes", True, True),
        ("yes.", True, True),
        ("YES, it does", True, True),
        ("It does: yes", True, True),
        ("<think>no, no</think>\nYes", True, True),
        ("<think>yes", False, False),
        ("No", False, True),
        ("no\n", False, True),
        ("Yesterday", False, False),
        ("**Yes**", False, False),
        ("It says yes to that", False, False),
        ("", False, False),
        ("...", False, False),
    ],
)
def test_one_word(text, value, clear):
    assert read_word(text) == Answer(value, clear)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ('{"motivation": "It says so.", "answer": "Yes"}', Answer(True, True, "It says so.")),
        ('{"answer": "No", "motivation": "It does not."}', Answer(False, True, "It does not.")),
        ('{motivation: "It says so.", answer: "yes."}', Answer(True, True, "It says so.")),
        ("{'motivation': \"It says so.\", 'answer': \"Yes\"}", Answer(True, True, "It says so.")),
        ('{"motivation": "the answer: no", "answer": "Yes"}', Answer(True, True, "the answer: no")),
        ('{"answer": true}', Answer(True, True)),
        ('{"answer": "perhaps", "motivation": null}', Answer(False, False)),
        ('{"motivation": "no answer"}', Answer(False, False, UNREADABLE)),
        ('{"answer": ["Yes"]}', Answer(False, False, UNREADABLE)),
        ("Yes", Answer(False, False, UNREADABLE)),
        ('["Yes"]', Answer(False, False, UNREADABLE)),
        ("[" * 100_000, Answer(False, False, UNREADABLE)),
        ("", Answer(False, False, UNREADABLE)),
    ],
)
def test_a_motivated_answer(text, answer):
    assert read_motivation(text) == answer
