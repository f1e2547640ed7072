"""An asyncio event loop on a thread of its own, called from trio or from plain blocking code.

Invariant: a call has one parent. The caller waits until the coroutine has ended, and cancelling the
caller cancels the coroutine and still waits for it, so nothing runs on after the call that began it.

Nothing here imports trio before a trio task calls, so the learner, which blocks, never does.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
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
        self._to_loop = _Mailbox(self._loop.call_soon_threadsafe)
        self._to_trio: tuple[Any, _Mailbox] | None = None

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
        answers = self._mailbox_of(trio.lowlevel.current_trio_token())
        running: asyncio.Task[T] | None = None
        raise_cancel: Callable[[], Any] | None = None
        ended = False

        def start() -> None:
            nonlocal running
            running = self._loop.create_task(function(*args, **kwargs))
            running.add_done_callback(lambda _: answers.post(finish))

        def finish() -> None:
            nonlocal ended
            ended = True
            trio.lowlevel.reschedule(caller)

        def cancel(raiser: Callable[[], Any]) -> Any:
            nonlocal raise_cancel
            raise_cancel = raiser
            # start() was posted before this, so the task exists by the time it runs.
            self._to_loop.post(lambda: running.cancel())
            return trio.lowlevel.Abort.FAILED

        self._to_loop.post(start)
        await trio.lowlevel.wait_task_rescheduled(cancel)
        assert ended and running is not None
        try:
            return running.result()
        except (asyncio.CancelledError, CancelledError):
            if raise_cancel is not None:
                raise_cancel()
            raise BusClosed("the bus was closed while a call was running") from None

    def _mailbox_of(self, token: Any) -> _Mailbox:
        """The way back to the trio run of ``token``. One run calls at a time."""
        if self._to_trio is None or self._to_trio[0] is not token:
            self._to_trio = (token, _Mailbox(token.run_sync_soon))
        return self._to_trio[1]


class _Mailbox:
    """Functions for another thread to call, in their order.

    Waking a thread costs a system call and a change of the interpreter's lock, more than what most calls do. So it
    is woken once for however many functions lie there: callers who come in a burst cross together.
    """

    def __init__(self, wake: Callable[[Callable[[], None]], Any]):
        """``wake(function)`` has the other thread call ``function`` soon."""
        self._wake = wake
        self._letters: deque[Callable[[], Any]] = deque()
        self._woken = False

    def post(self, letter: Callable[[], Any]) -> None:
        self._letters.append(letter)
        if not self._woken:
            self._woken = True
            self._wake(self._empty)

    def _empty(self) -> None:
        # First the flag: a letter that comes later than the count below wakes this thread again.
        self._woken = False
        for _ in range(len(self._letters)):
            self._letters.popleft()()
