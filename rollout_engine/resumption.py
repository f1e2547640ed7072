"""A step's groups as an engine takes them up, from what the log holds of them.

Invariant (rule 11): a group is of one task, and the log's word on which goes before the schedule's. So an engine that
is started again with another pool, seed or number of groups goes on with each group as it was begun, and one that can't
be gone on with is retired: nothing of it runs, it isn't trained on, and it counts for no bound. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from protocol.records import Trajectory
from rollout_engine.environments.task import Task
from rollout_engine.group import GroupResult


class Resumption:
    """The groups of one step.

    ``pool``       the tasks that may run.
    ``scheduled``  the task of a group, by number, that the log holds nothing of.
    ``oldest``     policy version that a sample must be of, at least, for the step to train on it.
    """

    def __init__(self, pool: Iterable[Task], scheduled: Callable[[int], Task], group_size: int, oldest: int):
        self._pool = {task.id: task for task in pool}
        self._scheduled = scheduled
        self._size = group_size
        self._oldest = oldest

    def take_up(self, number: int, logged: Mapping[int, Trajectory]) -> tuple[GroupResult, Task | None]:
        """The group with its samples that are ``logged``, by number, and the task to run the others on: None where it
        is retired, because its task has left the pool or the step may not train on what it has."""
        if not logged:
            task = self._scheduled(number)
            return GroupResult.of(number, task.id, self._size, {}), task
        tasks = sorted({trajectory.task for trajectory in logged.values()})
        task = self._pool.get(tasks[0]) if len(tasks) == 1 else None
        if not all(self.fits(trajectory) for trajectory in logged.values()):
            task = None
        return GroupResult.of(number, tasks[0], self._size, logged, retired=task is None), task

    def fits(self, trajectory: Trajectory) -> bool:
        """Whether the step may train on it, by its policy versions."""
        return trajectory.versions[0] >= self._oldest
