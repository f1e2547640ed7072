"""Whose doing it is when a task's test raises (rule 1): the state that the task's own solution leaves tells.

Invariant: a test is run on the golden state at most once a case; what comes of that depends on the case alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import trio

from rollout_engine.environments.thinkingbox.dataset import Case, formatted
from rollout_engine.environments.thinkingbox.talk import context_data, history_data, text
from rollout_engine.environments.thinkingbox.task import DONE
from rollout_engine.errors import BackendError
from rollout_engine.grading.child import GraderHost, Job, Outcome
from rollout_engine.grading.judge.agreeable import Agreeable
from rollout_engine.sessions.errors import SessionError
from rollout_engine.sessions.opening import OpensSessions


class GoldenRuns:
    """Runs tests on the golden states of their cases. ``host`` opens sessions."""

    def __init__(self, host: OpensSessions, graders: GraderHost) -> None:
        self._host = host
        self._graders = graders
        self._done: dict[Case, Outcome] = {}
        self._running: dict[Case, trio.Lock] = {}

    async def outcome(self, case: Case) -> Outcome:
        """What the case's test comes to on its golden state; on the untouched one, where the case embeds no solution.

        Raises :class:`BackendError`, and :class:`~rollout_engine.errors.GraderError` for a test that can't be run.
        """
        async with self._running.setdefault(case, trio.Lock()):
            if case not in self._done:
                self._done[case] = await self._run(case)
        return self._done[case]

    async def _run(self, case: Case) -> Outcome:
        try:
            async with self._host.open(case.world, tools=[tool.name for tool in case.scenario.tools]) as session:
                calls = []
                for number, call in enumerate(case.golden):
                    result = await session.call_on(call.server, call.tool, call.arguments)
                    calls.append((number, call, result.text))
                told = formatted(case, session.init_result)
                opening = [text("system", case.agent.system_instructions)]
                opening += [*history_data(case.history or ()), text("user", told.query)]
                for number, call, answer in calls:
                    id = f"call_{number}"
                    made = {"T": "ToolCall", "name": call.tool, "arguments": call.arguments, "id": id}
                    opening.append({"T": "ParallelToolCall", "tool_calls": [made]})
                    opening.append({"T": "ToolResponse", "name": call.tool, "content": answer, "id": id})
                opening.append(text("assistant", f"All of it is done. {DONE}", is_done=True))
                effects = await session.effects()
                context = context_data(opening, (), frozenset(), effects, session.init_result, session.id)
                return await self._graders.run(job(case, context), Agreeable(), session)
        except SessionError as error:
            raise BackendError(f"{case.uid}: the golden state can't be reached: {error}") from error


def job(case: Case, context: Mapping[str, Any]) -> Job:
    """The run of a case's test on ``context``."""
    fixtures = {name: {"type": fixture.type, "arguments": fixture.arguments} for name, fixture in case.fixtures.items()}
    return Job(case.uid, case.test_code, case.function, context, fixtures)
