"""Keeps one vLLM server at the announced policy version.

Invariant (rule 20): a version is said to be served, and tokens are labelled with it, only after the server's
log-probabilities on the announced probe have matched the learner's. Until then what the new weights sample is labelled
``vN?``, and the engine holds it back. A proof or a load that fails ends every running request without an answer.

    learner announces v ──► files ──► pause, label v? ──► load ──► forget cache ──► resume ──► probe ──► label v

Running requests go on over the change, each token under its own label, and the version before is served until the
next one is. What an engine makes of that is its own choice (``rollout.max_staleness``).

asyncio; imports neither trio nor JAX.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np

from protocol.config import Config
from protocol.errors import WaitExpired
from protocol.records import ActorLoad, ActorStatus, PolicyVersion, Probe
from rollout_engine.actors.control import UNPROVEN, ControlError, ServerControl, label, provisional
from rollout_engine.actors.digests import WeightsDamaged
from rollout_engine.actors.server import ServerFailed, ServerKilled
from rollout_engine.actors.versions import Versions
from rollout_engine.errors import ConfigurationError

NO_VERSION = -1
_FIRST_STARTS = 6
"""Tries of the first start, where each is killed from outside."""


class ProofFailed(Exception):
    """The server's log-probabilities on the probe are not the learner's."""


class OwnedServer(Protocol):
    """A server that the sidecar starts and stops: :class:`rollout_engine.actors.server.VllmServer`."""

    @property
    def exited(self) -> bool: ...
    async def start(self, folder: Path) -> None: ...
    async def stop(self) -> None: ...


class Sidecar:
    """Supervises the server behind ``control``; ``server`` is None for one that somebody else starts."""

    def __init__(
        self,
        id: str,
        config: Config,
        bus,
        control: ServerControl,
        server: OwnedServer | None,
        tell: Callable[[str], None],
    ):
        self.id = id
        self._config = config
        self._bus = bus
        self._control = control
        self._server = server
        self._tell = tell
        cache = Path(config.actor.cache) / config.run if config.actor.cache else config.path / "actors"
        self._versions = Versions(config.path, cache / id, tell)
        self._target: PolicyVersion | None = None
        self._up = False
        self._failures = 0
        """Health checks failed in a row."""
        self._busy = False
        """Weights are being changed, so the engine core may be slow to answer and its label means nothing."""
        self._loaded: int | None = None
        self._proven: int | None = None
        self._proof: float | None = None
        self._load = ActorLoad()
        self._model = ""
        self._note = "starting"
        self._changed = asyncio.Event()
        self._publishing = asyncio.Lock()

    async def run(self) -> None:
        """Serve until cancelled. Raises :class:`ServerFailed` or :class:`ConfigurationError` when the first
        start fails, :class:`protocol.errors.BusError` when the bus stays away."""
        self._target = await self._bus.policy()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._beat())
                await self._come_up_first()
                tasks.create_task(self._follow())
                tasks.create_task(self._keep())
        finally:
            self._withdraw("stopped")
            if self._server is not None:
                await self._server.stop()
            await self._publish()

    async def _come_up_first(self) -> None:
        """A server that can't be started ends us, one that is killed while it starts doesn't."""
        for _ in range(_FIRST_STARTS - 1):
            try:
                return await self._come_up()
            except ServerKilled as error:
                self._tell(f"{error}\nstarting it again")
        await self._come_up()

    async def _follow(self) -> None:
        """Learn of each new policy version."""
        while True:
            try:
                newest = await self._bus.wait_policy(self._target.version + 1 if self._target else 0)
            except WaitExpired:
                continue
            self._target = newest
            self._changed.set()

    async def _keep(self) -> None:
        """Bring the server to the target, again and again until it is there; then wait for a change."""
        while True:
            self._changed.clear()
            try:
                if not self._up:
                    await self._come_up()
                if self._target is not None and self._proven != self._target.version:
                    await self._bring_to(self._target)
            except (ControlError, ServerFailed, ConfigurationError, WeightsDamaged, ProofFailed) as error:
                self._note = str(error)
                await self._publish()
                self._tell(f"not at the announced version: {error}")
                await asyncio.sleep(self._config.actor.health_every)
            else:
                await self._changed.wait()

    async def _beat(self) -> None:
        """Say how the server is every ``health_every`` seconds; give it up after ``health_failures`` in a row."""
        while True:
            if self._up:
                self._failures = 0 if await self._answers() else self._failures + 1
                gone = self._server is not None and self._server.exited
                if gone or self._failures >= self._config.actor.health_failures:
                    self._lose(f"{self._control.url} is not healthy")
            await self._publish()
            await asyncio.sleep(self._config.actor.health_every)

    async def _answers(self) -> bool:
        if not await self._control.healthy():
            return False
        if self._busy:
            return True
        try:
            proven, told = self._proven, await self._control.weight_label()
            self._load = await self._control.load()
        except ControlError:
            return False
        if proven is not None and proven == self._proven and not self._busy and told != label(proven):
            # Restarted, or updated by somebody else, between two beats.
            self._lose(f"{self._control.url} holds weights labelled {told!r}, not {label(proven)!r}")
        return True

    async def _come_up(self) -> None:
        """Start the server, or wait for an attached one, and say that nothing is proven yet."""
        began = time.monotonic()
        if self._server is not None:
            await self._server.stop()
            target, folder = await self._start_with()
            self._tell(f"starting vLLM on {folder}")
            await self._server.start(folder)
            self._loaded = target.version if target else None
        else:
            await self._wait_for_attached()
            self._loaded = None
        self._model = await self._control.model()
        if self._target is not None:
            await self._control.set_weight_label(UNPROVEN)
        self._note = "" if self._target else "no policy version announced yet"
        self._up, self._failures = True, 0
        self._tell(f"{self._control.url} is up after {time.monotonic() - began:.1f} s")
        await self._publish()

    async def _start_with(self) -> tuple[PolicyVersion | None, Path]:
        """The announced version and its files; the base model's where there is none that can be had now."""
        target = self._target  # while the server starts, a newer one may be announced
        if target is not None:
            try:
                return target, await asyncio.to_thread(self._versions.materialise, target)
            except WeightsDamaged as error:
                self._tell(f"{error}\nstarting on the base model")
        return None, self._config.path / self._config.model.folder

    async def _wait_for_attached(self) -> None:
        try:
            async with asyncio.timeout(self._config.actor.start_timeout):
                while not await self._control.healthy():
                    await asyncio.sleep(self._config.actor.health_every)
        except TimeoutError:
            raise ServerFailed(
                f"nobody answered at {self._control.url}/health within actor.start_timeout = "
                f"{self._config.actor.start_timeout:g} s: start that server, or leave out --url to start one"
            ) from None

    async def _bring_to(self, target: PolicyVersion) -> None:
        began = time.monotonic()
        self._note = f"loading {label(target.version)}"
        await self._publish()
        # Read while the weights before go on serving.
        held = self._loaded == target.version
        folder = None if held else await asyncio.to_thread(self._versions.materialise, target)
        self._busy = True
        try:
            self._loaded = None  # until proven: whatever fails, the next try loads again
            if folder is not None:
                await self._load_weights(target, folder)
            loaded = time.monotonic()
            self._proof = await self._prove(target.probe)
            await self._control.set_weight_label(label(target.version))
            self._loaded = self._proven = target.version
        except (ControlError, ProofFailed) as error:
            await self._disown(str(error))
            raise
        finally:
            self._busy = False
        self._note = ""
        await self._publish()
        self._tell(
            f"serving {label(target.version)}: loaded in {loaded - began:.2f} s, "
            f"proof {self._proof:.2e} (tolerance {target.probe.tolerance:g}) in {time.monotonic() - loaded:.2f} s"
        )

    async def _load_weights(self, target: PolicyVersion, folder: Path) -> None:
        """Pause, load, forget the cache, go on. A failure leaves the server paused until a good load."""
        bound = self._config.actor.update_timeout
        await self._control.pause(bound)
        await self._control.set_weight_label(provisional(target.version))
        await self._control.load_weights(folder, bound)
        await self._control.reset_prefix_cache(bound)
        await self._control.resume()

    async def _disown(self, note: str) -> None:
        """Nothing is proven any more, and what is being sampled is thrown away."""
        self._withdraw(note)
        await self._publish()
        if self._up:
            try:
                await self._control.abort(self._config.actor.update_timeout)
            except ControlError as error:
                self._lose(str(error))

    async def _prove(self, probe: Probe) -> float:
        ids = np.frombuffer(probe.ids, "<i4")
        expected = np.frombuffer(probe.logprobs, "<f4")
        actual = await self._control.logprobs(ids, self._config.actor.update_timeout)
        difference = float(np.abs(actual.astype(np.float64) - expected).mean())
        if not difference <= probe.tolerance:
            raise ProofFailed(
                f"probe refused: log-probabilities differ by {difference:.3g} on average, "
                f"tolerance {probe.tolerance:g} (learner.proof_tolerance)"
            )
        return difference

    def _withdraw(self, note: str) -> None:
        self._proven = self._proof = None
        self._note = note

    def _lose(self, note: str) -> None:
        """Stop trusting the server: it is started or loaded anew."""
        self._tell(note)
        self._withdraw(note)
        self._up = False
        self._changed.set()

    async def _publish(self) -> None:
        async with self._publishing:
            await self._bus.put_actor(
                ActorStatus(
                    id=self.id,
                    url=self._control.url,
                    model=self._model,
                    version=NO_VERSION if self._proven is None else self._proven,
                    serving=self._proven is not None and not self._failures,
                    load=self._load,
                    proof=self._proof,
                    time=time.time(),
                    note=self._note,
                )
            )
