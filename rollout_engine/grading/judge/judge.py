"""The judge of one episode: yes or no about texts, asked of a model.

Invariants: a question that can't be asked is a :class:`~rollout_engine.errors.JudgeError`, never a No; every answer is
kept with its question, so that a verdict can be read up. A method is asked for by its name and plain arguments, so a
test that runs in another process can ask over a socket.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx

from protocol.config import Judge as JudgeSettings
from protocol.records import ModelCall
from rollout_engine.chat_endpoint import ChatEndpoint
from rollout_engine.errors import JudgeError
from rollout_engine.grading.judge.answers import Answer, read_motivation, read_word
from rollout_engine.grading.judge.prompts import QUESTION, REPEATS, Messages, about_text, about_two, chat

METHODS = {
    "yesno": ("question",),
    "text_yesno": ("text", "question"),
    "text_yesno_legacy": ("text", "question"),
    "text_yesno_with_motivation": ("text", "question"),
    "compare_yesno": ("first", "second", "question"),
    "no_repeat": ("first", "second_list"),
    "evaluate_bool": ("system", "user"),
}
"""What a test may ask, and the names of its arguments in their order."""


class Judge:
    """``client`` is shared, and not closed. Without an endpoint in ``config`` every question is a JudgeError.

    Raises :class:`protocol.config.ConfigError` when the key's environment variable is named but not set.
    """

    def __init__(self, config: JudgeSettings, client: httpx.AsyncClient) -> None:
        self.decisions: list[dict[str, Any]] = []
        """{question, answer, motivation, clear} of every answer, in order."""
        self._model = ChatEndpoint(config, client, "judge") if config.endpoint else None
        self._form = config.form

    @property
    def calls(self) -> Sequence[ModelCall]:
        """What has been asked of the model."""
        return self._model.calls if self._model else ()

    async def ask(self, method: str, arguments: Sequence[Any]) -> Any:
        """Call one of :data:`METHODS`. Raises TypeError for a method or arguments that there are not."""
        names = METHODS.get(method)
        if names is None:
            raise TypeError(f"the judge has no {method!r}; it has {', '.join(METHODS)}")
        if len(arguments) != len(names):
            raise TypeError(f"{method} takes {', '.join(names)}, not {len(arguments)} arguments")
        for name, value in zip(names, arguments, strict=True):
            texts = value if name == "second_list" and isinstance(value, list) else [value]
            if not all(isinstance(text, str) for text in texts):
                raise TypeError(f"{method}: {name} must be text, not {value!r:.80}")
        return await getattr(self, method)(*arguments)

    async def yesno(self, question: str) -> bool:
        return (await self._word(question, chat(QUESTION, question))).value

    async def text_yesno(self, text: str, question: str) -> bool:
        """``question`` about ``text``, in the configured form."""
        if self._form == "motivation":
            return (await self._motivated(text, question)).value
        return await self.text_yesno_legacy(text, question)

    async def text_yesno_legacy(self, text: str, question: str) -> bool:
        """``question`` about ``text``, answered in one word whatever the configuration says."""
        return (await self._word(question, about_text(text, question, motivation=False))).value

    async def text_yesno_with_motivation(self, text: str, question: str) -> dict[str, Any]:
        """{answer: bool, motivation: text}."""
        answer = await self._motivated(text, question)
        return {"answer": answer.value, "motivation": answer.motivation}

    async def compare_yesno(self, first: str, second: str, question: str) -> bool:
        return (await self._word(question, about_two(first, second, question))).value

    async def no_repeat(self, first: str, second_list: Sequence[str]) -> bool:
        """Whether ``first`` repeats none of ``second_list``; the first that it repeats ends the asking."""
        for second in second_list:
            if await self.compare_yesno(first, second, REPEATS):
                return False
        return True

    async def evaluate_bool(self, system: str, user: str) -> bool:
        """A test's own prompts, answered in one word."""
        return (await self._word(user, chat(system, user))).value

    async def _word(self, question: str, messages: Messages) -> Answer:
        return self._kept(question, read_word(await self._complete(messages)))

    async def _motivated(self, text: str, question: str) -> Answer:
        answer = await self._complete(about_text(text, question, motivation=True))
        return self._kept(question, read_motivation(answer))

    async def _complete(self, messages: Messages) -> str:
        if self._model is None:
            raise JudgeError("the test asks the judge, and there is none: set judge.endpoint and judge.model")
        return await self._model.complete(messages)

    def _kept(self, question: str, answer: Answer) -> Answer:
        kept = {"answer": answer.value, "motivation": answer.motivation, "clear": answer.clear}
        self.decisions.append({"question": question, **kept})
        return answer
