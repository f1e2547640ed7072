"""Sessions of a group from one that was initialised once.

Invariant: a template lives while a session of its group does, and :data:`LINGER` seconds longer for those that are
still to come; it is opened and closed by one task. Where a template can't be had, sessions are opened afresh.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from rollout_engine.sessions.errors import SessionError
from rollout_engine.sessions.host import SessionHost
from rollout_engine.sessions.session import Session, Template

LINGER = 5.0
"""Seconds that a template without a session is kept."""


class GroupSessions:
    """Clones sessions of ``host``. ``nursery`` owns the templates: cancelling it closes them."""

    def __init__(self, host: SessionHost, nursery: trio.Nursery) -> None:
        self._host = host
        self._nursery = nursery
        self._kept: dict[Hashable, _Kept] = {}

    @asynccontextmanager
    async def open(
        self, group: Hashable, configs: Mapping[str, Any], seed: int, tools: Sequence[str]
    ) -> AsyncIterator[Session]:
        """A session in the state after init of ``group``'s, whose members share ``configs`` and ``tools``.

        Raises SessionError.
        """
        kept = self._kept.get(group)
        if kept is None:
            kept = self._kept[group] = _Kept()
            # What init draws is the group's, whichever of its samples comes first.
            drawn = zlib.crc32(repr(group).encode())
            self._nursery.start_soon(self._keep, group, kept, configs, drawn, tools)
        kept.enter()
        try:
            await kept.ready.wait()
            if kept.template is None:
                raise SessionError(f"the group's session could not be opened: {kept.fault}") from kept.fault
            opened = False
            try:
                async with kept.template.clone(seed=seed) as session:
                    opened = True
                    yield session
            except SessionError:
                if not opened:
                    self._forget(group, kept)
                raise
        finally:
            kept.leave()

    async def _keep(self, group: Hashable, kept: _Kept, configs: Mapping[str, Any], seed: int, tools: Sequence[str]):
        try:
            async with self._host.template(configs, seed=seed, tools=tools) as kept.template:
                kept.ready.set()
                await kept.unused()
                self._forget(group, kept)
        except SessionError as error:
            kept.fault = error
        finally:
            self._forget(group, kept)
            kept.ready.set()

    def _forget(self, group: Hashable, kept: _Kept) -> None:
        """Let the next session of the group have another template."""
        if self._kept.get(group) is kept:
            del self._kept[group]


class _Kept:
    """A group's template, and how many sessions of it there are."""

    def __init__(self) -> None:
        self.template: Template | None = None
        self.fault: SessionError | None = None
        self.ready = trio.Event()
        self._users = 0
        self._idle, self._busy = trio.Event(), trio.Event()

    def enter(self) -> None:
        self._users += 1
        self._busy.set()
        self._idle = trio.Event()

    def leave(self) -> None:
        self._users -= 1
        if not self._users:
            self._idle.set()
            self._busy = trio.Event()

    async def unused(self) -> None:
        """Wait until it has had no session for :data:`LINGER` seconds."""
        while self._users:
            await self._idle.wait()
            with trio.move_on_after(LINGER):
                await self._busy.wait()
