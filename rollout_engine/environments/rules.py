"""What a task must satisfy before it can be used (rule 5), and what keeps the splits apart.

Invariant: a task that passes here can be failed by an agent and can be passed by one: the oracle passes,
doing nothing fails, the oracle less any one needed call fails, and every slip fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from protocol.records import ToolCall
from rollout_engine.environments.backend import Backend, replay
from rollout_engine.environments.domain import Domain
from rollout_engine.environments.families import ENTITY, split_of
from rollout_engine.environments.task import Task, calls_of, content_key
from rollout_engine.errors import BackendError, ConfigurationError
from rollout_engine.grading.diff import compare, explain


def check_task(domain: Domain, task: Task) -> None:
    """Raise :class:`ConfigurationError` naming the task and the way in which it breaks rule 5."""
    try:
        _check(domain, task)
    except (ConfigurationError, BackendError) as error:
        raise ConfigurationError(f"task {task.id}: {error}") from error


def _check(domain: Domain, task: Task) -> None:
    tables = domain.schema.tables
    _, untouched = replay(domain, task, ())
    if misfit := domain.schema.misfit(untouched):
        raise ConfigurationError(f"rows do not fit the tables of domain {domain.name}: {misfit}")
    results, expected = replay(domain, task, task.oracle)
    for call, result in zip(task.oracle, results, strict=True):
        if result.is_error:
            raise ConfigurationError(f"the oracle fails: {_show(call)} answers {result.text}")
    _, again = replay(domain, task, task.oracle)
    if difference := compare(tables, expected, again):
        raise ConfigurationError(
            f"the oracle fails its own check: {explain(difference)[0]}; "
            "declare the column free or make the tool deterministic"
        )
    if not compare(tables, expected, untouched):
        raise ConfigurationError("doing nothing passes; the oracle must change a graded column")
    for index, call in _state_changing(domain, task):
        calls = task.oracle[:index] + task.oracle[index + 1 :]
        if not compare(tables, expected, replay(domain, task, calls)[1]):
            raise ConfigurationError(f"the oracle passes without its call {_show(call)}, so that call is not needed")
    for slip in task.slips:
        if not compare(tables, expected, replay(domain, task, calls_of(slip.script))[1]):
            raise ConfigurationError(f"slip {slip.name!r} passes the check")


def _state_changing(domain: Domain, task: Task) -> Iterator[tuple[int, ToolCall]]:
    """The oracle's calls that change the database, with their positions. The others are reads."""
    backend = Backend(domain, task.rows)
    try:
        before = backend.snapshot()
        for index, call in enumerate(task.oracle):
            backend.call(call.name, call.arguments or {})
            after = backend.snapshot()
            if after != before:
                yield index, call
            before = after
    finally:
        backend.close()


def check_unique(tasks: Sequence[Task]) -> None:
    """No two tasks share an id or a content. Raises :class:`ConfigurationError` naming the first two that do."""
    seen_ids: set[str] = set()
    seen_content: dict[str, Task] = {}
    for task in tasks:
        if task.id in seen_ids:
            raise ConfigurationError(f"task {task.id} appears twice")
        seen_ids.add(task.id)
        twin = seen_content.setdefault(content_key(task), task)
        if twin is not task:
            raise ConfigurationError(f"tasks {twin.id} and {task.id} have the same content; leave one out")


def check_split(tasks: Sequence[Task]) -> None:
    """Tasks are unique and every entity of a task belongs to the task's split, so that no two splits share one.

    Raises :class:`ConfigurationError` naming the first offender.
    """
    check_unique(tasks)
    for task in tasks:
        for entity in sorted(entities(task)):
            if split_of(entity) != task.split:
                raise ConfigurationError(
                    f"task {task.id} is in split {task.split} but its entity {entity} belongs to {split_of(entity)}"
                )


def check_disjoint(train: Sequence[Task], heldout: Sequence[Task]) -> None:
    """No task and no entity is shared. Raises :class:`ConfigurationError` naming what is."""
    check_unique([*train, *heldout])
    shared = {entity for task in train for entity in entities(task)} & {
        entity for task in heldout for entity in entities(task)
    }
    if shared:
        raise ConfigurationError(f"entity {min(shared)} appears in both training and held-out tasks")


def entities(task: Task) -> set[str]:
    """Every entity id in a task's rows, decoys included."""
    values = (value for rows in task.rows.values() for row in rows for value in row.values())
    return {value for value in values if isinstance(value, str) and ENTITY.fullmatch(value)}


def _show(call: ToolCall) -> str:
    arguments = ", ".join(f"{name}={value!r}" for name, value in (call.arguments or {}).items())
    return f"{call.name}({arguments})"
