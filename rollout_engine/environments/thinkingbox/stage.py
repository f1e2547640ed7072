"""One episode of a ThinkingBox case: its :class:`~rollout_engine.environments.environment.Stage`.

Invariant: the agent meets what it would meet there, and what ends a conversation there ends it here. The effects are
read once the agent can call nothing any more; the session itself lives until the test is through, for its fixtures.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from protocol.records import Message, ModelCall, ToolCall, Verdict
from rollout_engine.environments.environment import Answer, Ended, Play
from rollout_engine.environments.thinkingbox.dataset import Case
from rollout_engine.environments.thinkingbox.golden import job
from rollout_engine.environments.thinkingbox.talk import calls_of, context_data, history_data, history_messages, text
from rollout_engine.environments.thinkingbox.task import DONE
from rollout_engine.environments.thinkingbox.tools import Toolbox
from rollout_engine.errors import BackendError, GraderError
from rollout_engine.grading.child import GraderHost, Outcome
from rollout_engine.sessions.errors import SessionError
from rollout_engine.sessions.opening import OpenSession
from rollout_engine.users.thinkingbox import ThinkingBoxUser

_SHOWN = 2000
"""Characters of a reason."""


class ThinkingBoxStage:
    """``case`` is formatted, ``session`` open and initialised; ``golden`` runs the case's test on its golden state."""

    def __init__(
        self,
        case: Case,
        session: OpenSession,
        box: Toolbox,
        user: ThinkingBoxUser,
        judge: Any,
        graders: GraderHost,
        golden: Callable[[], Awaitable[Outcome]],
        call_timeout: float,
        ranking: str,
    ) -> None:
        self.ranking = ranking
        self.tools = box.listed
        self.ending = box.ending
        self.agent_turns = case.max_agent_turns
        systems = [part for part in (case.agent.system_instructions, case.instructions) if part]
        self.opening = (
            *(Message("system", part) for part in systems),
            *history_messages(case.history or ()),
            Message("user", case.query),
        )
        self._written = [text("system", part) for part in systems]
        self._written += [*history_data(case.history or ()), text("user", case.query)]
        # Several system messages become one in the conversation.
        self._before = len(self.opening) - max(0, len(systems) - 1)
        self._case = case
        self._session = session
        self._box = box
        self._user = user
        self._judge = judge
        self._graders = graders
        self._golden = golden
        self._call_timeout = call_timeout
        self._closed = False

    @property
    def calls(self) -> Sequence[ModelCall]:
        return (*self._user.calls, *self._judge.calls)

    async def replay(self) -> None:
        """Carry out the calls of the case's history again, so that the world is as it was. One that fails is left
        out, as it may have failed then. Raises :class:`BackendError` where the session has ended."""
        for item in self._case.history or ():
            for call in calls_of(item):
                if call.name not in self._box.builtin and "error" not in call.metadata:
                    await self._carry_out(call.name, call.arguments)

    async def call(self, call: ToolCall) -> Answer:
        if call.name in self._box.builtin:
            return Answer(f"Error: no server answers {call.name}", is_error=True)
        return self._box.answer(call.name, await self._carry_out(call.name, call.arguments))

    def ends(self, said: Message) -> str | None:
        return "done" if said.content.strip().endswith(DONE) else None

    async def reply(self, messages: tuple[Message, ...]) -> str | Ended:
        return await self._user.reply(messages)

    async def finish(self) -> dict[str, Any]:
        self._closed = True
        try:
            return await self._session.effects(timeout=self._call_timeout)
        except SessionError as error:
            raise BackendError(f"{self._case.uid}: the effects can't be read: {error}") from error

    async def grade(self, state: dict[str, Any], play: Play) -> Verdict:
        context = context_data(
            self._written,
            play.messages[self._before :],
            self.ending,
            state,
            self._session.init_result,
            self._session.id,
        )
        try:
            outcome = await self._graders.run(job(self._case, context), self._judge, self._session)
        except SessionError as error:
            raise BackendError(f"{self._case.uid}: the session ended while it was graded: {error}") from error
        if outcome.kind in ("pass", "fail"):
            return Verdict(outcome.reward, reasons=(*reasons(outcome), *_judged(self._judge.decisions)))
        return await self._told_apart(outcome)

    async def _told_apart(self, outcome: Outcome) -> Verdict:
        """The verdict where the test came to no end of its own (rule 1)."""
        said = f"the test {_ENDS[outcome.kind]}: {outcome.message[:_SHOWN]}"
        if outcome.wall_limited:
            raise GraderError(f"{self._case.uid}: {said}")
        golden = await self._golden()
        if golden.kind in ("pass", "fail"):
            return Verdict(0.0, reasons=(f"{said}, on the state that the agent left", *reasons(outcome)))
        state = "the golden state" if self._case.golden else "the untouched state, and the task tells no golden one"
        raise GraderError(f"{self._case.uid} is broken: {said}, and so it does on {state}: {golden.message[:_SHOWN]}")

    async def _carry_out(self, name: str, arguments: Any):
        if self._closed:
            raise BackendError(f"tool {name} called after the session was closed to the agent")
        try:
            return await self._session.call(name, arguments, timeout=self._call_timeout)
        except SessionError as error:
            raise BackendError(f"tool {name}: {error}") from error


def _judged(decisions: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the judge did not grant, and what it answered in no clear form."""
    told = []
    for decision in decisions:
        if not (decision["answer"] and decision["clear"]):
            unclear = "" if decision["clear"] else ", in no clear form"
            why = f": {decision['motivation']}" if decision["motivation"] else ""
            answer = "yes" if decision["answer"] else "no"
            told.append(f"the judge said {answer}{unclear} to {decision['question']!r:.{_SHOWN}}{why}")
    return told


_ENDS = {"raised": "raised", "limit": "was stopped", "crashed": "crashed"}


def reasons(outcome: Outcome) -> tuple[str, ...]:
    """Why a test did not pass, for people."""
    if outcome.kind == "pass":
        return ()
    where = f"line {outcome.line}: {outcome.source}" if outcome.line else ""
    return tuple(part for part in (outcome.message[:_SHOWN], where) if part)
