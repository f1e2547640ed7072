"""kill -9, at random instants, of random processes, sometimes of several at once.

Invariant: the storm is a function of its seed as far as the processes allow; it kills what lives at that instant,
also while it is still starting or recovering, and counts only what it has killed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping

import psutil
import trio

from benchmarks.chaos.verbs import Verb, processes_of
from protocol.config import Config

WEIGHTS = {"nats": 6, "nats-verb": 2, "engine": 7, "learner": 4, "vllm": 3, "sidecar": 2}
"""How often each is chosen. ``nats-verb``: bin/nats alone, which leaves its server without a parent."""

TOGETHER = 0.25
"""How often several are killed at one instant."""


LULL = 1.3
"""How much longer the next pause is after an instant since which the run has got no further: on a busy machine, too,
a run comes to an end."""


class Storm:
    """``every``: mean seconds between two instants. ``most``: kills after which it is calm. ``progress``: how far the
    run has got, by any measure that grows."""

    def __init__(
        self,
        config: Config,
        verbs: Mapping[str, Verb],
        rng: random.Random,
        every: float,
        most: int,
        progress: Callable[[], int],
    ):
        self.kills: Counter[str] = Counter()
        self.together = 0
        self._rng = rng
        self._every = every
        self._most = most
        self._progress = progress
        server = str(config.path / "nats" / "nats.conf")
        self._find: dict[str, Callable[[], list[psutil.Process]]] = {
            "nats": lambda: processes_of("nats-server", server),
            "nats-verb": lambda: _main_of(verbs["nats"]),
            "engine": lambda: _main_of(verbs["rollouts"]),
            "learner": lambda: _main_of(verbs["learner"]),
            "vllm": lambda: self._one_of(processes_of("rollout_engine.actors.serve", str(config.actor.port))),
            "sidecar": lambda: _main_of(verbs["actor"]),
        }

    async def rage(self) -> None:
        """Kill until ``most`` are killed."""
        every, reached = self._every, self._progress()
        while self.kills.total() < self._most:
            await trio.sleep(self._rng.expovariate(1 / every))
            every = self._every if self._progress() > reached else LULL * every
            reached = self._progress()
            count = self._rng.choice([2, 3, 4]) if self._rng.random() < TOGETHER else 1
            kinds = {self._choose() for _ in range(count)}
            killed = [kind for kind in sorted(kinds) if self._kill(kind)]
            self.kills.update(killed)
            self.together += len(killed) > 1

    def _choose(self) -> str:
        return self._rng.choices([*WEIGHTS], [*WEIGHTS.values()])[0]

    def _one_of(self, found: list[psutil.Process]) -> list[psutil.Process]:
        """vLLM is an API server and an engine core, each of which may die without the other."""
        return [self._rng.choice(found)] if found else []

    def _kill(self, kind: str) -> bool:
        hit = False
        for process in self._find[kind]():
            try:
                process.kill()
                hit = True
            except psutil.NoSuchProcess:
                pass
        return hit


def _main_of(verb: Verb) -> list[psutil.Process]:
    if verb.process is None or verb.process.poll() is not None:
        return []
    return [psutil.Process(verb.process.pid)]
