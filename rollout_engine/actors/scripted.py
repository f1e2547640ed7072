"""A policy that reads its lines from the tasks' own scripts: for load tests, checks and unit tests.

Invariant: it goes through the same tokens as a model would. Its text is encoded, its ids end in the
template's stop id, and what it says is interpreted like anything sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from protocol.records import ToolCall
from rollout_engine.actors.policy import GenerateRequest, Generation
from rollout_engine.environments.environment import AnyTask
from rollout_engine.environments.task import Say
from rollout_engine.tokens.interpretation import render_call
from rollout_engine.tokens.template import ChatTemplate

Script = Sequence[Say | ToolCall]


def oracle_scripts(tasks: Iterable[AnyTask]) -> dict[str, Script]:
    """Each task's own solution, by its id; raises :class:`~rollout_engine.errors.ConfigurationError` for a task that
    tells none."""
    return {task.id: task.script for task in tasks}


class ScriptedPolicy:
    """Plays ``script_of(task id)`` turn by turn; each episode is told apart by its sticky key."""

    def __init__(self, template: ChatTemplate, script_of: Callable[[str], Script], version: int = 0):
        self._template = template
        self._script_of = script_of
        self._version = version
        self._turn: dict[str, int] = {}

    @classmethod
    def of_scripts(cls, template: ChatTemplate, scripts: Mapping[str, Script], version: int = 0) -> ScriptedPolicy:
        return cls(template, scripts.__getitem__, version)

    async def require(self, version: int) -> None:
        """From now on be policy version ``version``."""
        self._version = version

    async def generate(self, request: GenerateRequest) -> Generation:
        task = request.episode.partition("#")[0]
        turn = self._turn.get(request.episode, 0)
        script = self._script_of(task)
        line = script[turn]
        if turn + 1 < len(script):
            self._turn[request.episode] = turn + 1
        else:
            self._turn.pop(request.episode, None)
        text = line.text if isinstance(line, Say) else render_call(line)
        if self._template.reasoning_open:
            text = f"</think>\n\n{text}"
        ids = [*self._template.encode(text), self._template.close_id][: request.max_tokens]
        finish = "stop" if ids[-1] in request.stop_ids else "length"
        # It could have said nothing else.
        support = [[id] for id in ids] if request.sampling.truncated else None
        return Generation(ids, [0.0] * len(ids), [self._version] * len(ids), finish, "scripted", support)
