"""Several awaitables at once, under one parent (asyncio).

Invariant: when :func:`together` returns or raises, none of them runs any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

S = TypeVar("S")
T = TypeVar("T")


async def together(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Their results, in their order. Each starts in that order; the first failure, unwrapped, ends them all."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from failures
    return [task.result() for task in tasks]


async def each(function: Callable[[S], Awaitable[T]], items: Iterable[S], at_once: int) -> list[T]:
    """``function`` of each item, ``at_once`` at a time, in their order; failures as in :func:`together`."""
    gate = asyncio.Semaphore(at_once)

    async def gated(item: S) -> T:
        async with gate:
            return await function(item)

    return await together([gated(item) for item in items])
