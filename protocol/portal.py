"""An asyncio event loop on a thread of its own, called from trio or from plain blocking code.

Invariant: a call has one parent. The caller waits until the coroutine has ended, and cancelling the
caller cancels the coroutine and still waits for it, so nothing runs on after the call that began it.

Nothing here imports trio before a trio task calls, so the learner, which blocks, never does.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from protocol.errors import BusClosed

T = TypeVar("T")


class Portal:
    """Runs coroutine functions on a private asyncio loop. Enter it with ``with``; leaving ends the thread."""

    def __init__(self, name: str = "asyncio-portal"):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)

    def __enter__(self) -> Portal:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        # What nats-py may have left behind is cancelled and awaited, on this thread: the loop's own is gone.
        leftover = asyncio.all_tasks(self._loop)
        for task in leftover:
            task.cancel()
        if leftover:
            self._loop.run_until_complete(asyncio.gather(*leftover, return_exceptions=True))
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def call(self, function: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
        """Run ``function(*args, **kwargs)`` to its end, blocking this thread.

        KeyboardInterrupt cancels it; what it then still cleans up ends, at the latest, with the portal.
        """
        if self._loop.is_closed():
            raise BusClosed("the bus is closed: use it inside its `with`")
        future = asyncio.run_coroutine_threadsafe(function(*args, **kwargs), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def call_from_trio(self, function: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
        """Run ``function(*args, **kwargs)`` to its end from a trio task; cancelling the task cancels it."""
        import trio

        if self._loop.is_closed():
            raise BusClosed("the bus is closed: use it inside its `async with`")
        caller = trio.lowlevel.current_task()
        token = trio.lowlevel.current_trio_token()
        running: asyncio.Task[T] | None = None
        raise_cancel: Callable[[], Any] | None = None
        ended = False

        def start() -> None:
            nonlocal running
            running = self._loop.create_task(function(*args, **kwargs))
            running.add_done_callback(lambda _: token.run_sync_soon(finish))

        def finish() -> None:
            nonlocal ended
            ended = True
            trio.lowlevel.reschedule(caller)

        def cancel(raiser: Callable[[], Any]) -> Any:
            nonlocal raise_cancel
            raise_cancel = raiser
            # start() was queued on the loop before this, so the task exists by the time it runs.
            self._loop.call_soon_threadsafe(lambda: running.cancel())
            return trio.lowlevel.Abort.FAILED

        self._loop.call_soon_threadsafe(start)
        await trio.lowlevel.wait_task_rescheduled(cancel)
        assert ended and running is not None
        try:
            return running.result()
        except (asyncio.CancelledError, CancelledError):
            if raise_cancel is not None:
                raise_cancel()
            raise BusClosed("the bus was closed while a call was running") from None
