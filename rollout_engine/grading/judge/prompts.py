"""What the judge is asked, word for word.

Invariant: a text under judgement stands between tags that it can't close: its angle brackets are escaped. Questions
are the test's own and go in as they are.
"""

from __future__ import annotations

Messages = list[dict[str, str]]

ONE_WORD = "Answer with one word: Yes or No."

QUESTION = f"You are a judge. You are asked a question. {ONE_WORD}"

TEXT = f"""\
You are a judge. You read a message and answer a question about what it says.
The message stands between <message> and </message>; the question comes after it. {ONE_WORD}"""

TEXT_WITH_MOTIVATION = """\
You are a judge. You read a message and answer a question about what it says.
The message stands between <message> and </message>; the question comes after it. The message may be an exchange between
an assistant and a user: judge by what the assistant says in it, and by nothing else.
Answer with a JSON object of this form, and with nothing around it:

{
    "motivation": "one or two sentences that say why",
    "answer": "Yes" or "No"
}"""

COMPARISON = f"""\
You are a judge. You read two messages and answer a question about what they say.
The first stands between <first> and </first>, the second between <second> and </second>; the question comes after
them. {ONE_WORD}"""

REPEATS = "Does the first message say again what the second message says?"


def escaped(text: str) -> str:
    """``text`` with its angle brackets escaped."""
    return text.replace("<", "&lt;").replace(">", "&gt;")


def chat(system: str, user: str) -> Messages:
    """A system message and a user message."""
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def about_text(text: str, question: str, *, motivation: bool) -> Messages:
    system = TEXT_WITH_MOTIVATION if motivation else TEXT
    return chat(system, f"<message>\n{escaped(text)}\n</message>\n{question}")


def about_two(first: str, second: str, question: str) -> Messages:
    parts = [("first", first), ("second", second)]
    quoted = [f"<{tag}>\n{escaped(text)}\n</{tag}>" for tag, text in parts]
    return chat(COMPARISON, "\n".join([*quoted, question]))
