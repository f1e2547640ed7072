"""The sidecar's promises, against a scripted server and a scripted bus. The sidecar runs on asyncio."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from protocol.config import resolve
from protocol.records import ActorLoad, ActorStatus, PolicyVersion, Probe
from rollout_engine.actors.control import UNPROVEN, ControlError, provisional
from rollout_engine.actors.server import ServerFailed, ServerKilled
from rollout_engine.actors.sidecar import Sidecar

IDS = np.array([3, 4, 5], "<i4")


class ScriptedServer:
    """A server and its control side. Weights are a name; log-probabilities on the probe depend on it."""

    url = "http://scripted:1"

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.weights = ""
        self.label = "default"
        self.exited = False
        self.well = True
        self.fail: dict[str, str] = {}
        self.gate: asyncio.Event | None = None
        """Holds up the probe."""
        self.starts: list[str] = []
        self.starting: asyncio.Event | None = None
        """Holds up a start."""
        self.killed = 0
        """Next starts that are killed."""

    async def start(self, folder: Path) -> None:
        if self.killed:
            self.killed -= 1
            raise ServerKilled("vLLM was killed (signal 9) while starting")
        if "start" in self.fail:
            raise ServerFailed(self.fail["start"])
        self.starts.append(folder.name)
        if self.starting is not None:
            await self.starting.wait()
        self.weights, self.label, self.exited, self.well = folder.name, "default", False, True

    async def stop(self) -> None:
        self.exited = True

    async def healthy(self) -> bool:
        return self.well and not self.exited

    async def load(self) -> ActorLoad:
        return ActorLoad(running=7, waiting=2, kv_use=0.5)

    async def model(self) -> str:
        return "policy"

    async def weight_label(self) -> str:
        return self.label

    async def set_weight_label(self, text: str) -> None:
        self._called(f"label {text}")
        self.label = text

    async def pause(self, timeout: float) -> None:
        self._called("pause")

    async def abort(self, timeout: float) -> None:
        self._called("abort")

    async def resume(self) -> None:
        self._called("resume")

    async def load_weights(self, folder: Path, timeout: float) -> None:
        self._called("load")
        self.weights = folder.name

    async def reset_prefix_cache(self, timeout: float) -> None:
        self._called("reset")

    async def logprobs(self, ids: np.ndarray, timeout: float) -> np.ndarray:
        self._called("probe")
        if self.gate is not None:
            await self.gate.wait()
        return expected(self.weights)

    def _called(self, call: str) -> None:
        self.calls.append(call)
        message = self.fail.get(call)
        if message:
            raise ControlError(message)


def expected(weights: str) -> np.ndarray:
    return np.full(len(IDS) - 1, -float(len(weights)), "<f4")


class ScriptedBus:
    def __init__(self) -> None:
        self.announced: PolicyVersion | None = None
        self.told: list[ActorStatus] = []
        self._changed = asyncio.Condition()

    async def announce(self, version: PolicyVersion) -> None:
        async with self._changed:
            self.announced = version
            self._changed.notify_all()

    async def policy(self) -> PolicyVersion | None:
        return self.announced

    async def wait_policy(self, version: int) -> PolicyVersion:
        async with self._changed:
            await self._changed.wait_for(lambda: self.announced is not None and self.announced.version >= version)
        return self.announced

    async def put_actor(self, status: ActorStatus) -> None:
        async with self._changed:
            self.told.append(status)
            self._changed.notify_all()

    async def until(self, wanted: Callable[[ActorStatus], bool]) -> ActorStatus:
        """The next heartbeat, from the last one on, that is as wanted; ``TimeoutError`` when none comes."""
        seen = max(0, len(self.told) - 1)
        async with asyncio.timeout(10), self._changed:
            while True:
                for status in self.told[seen:]:
                    if wanted(status):
                        return status
                seen = len(self.told)
                await self._changed.wait()


class Scene:
    def __init__(self, tmp_path: Path, owned: bool = True):
        self.folder = tmp_path
        self.server = ScriptedServer()
        self.bus = ScriptedBus()
        actor = {"health_every": 0.01, "health_failures": 3, "start_timeout": 0.05}
        config = resolve({"run": "r", "folder": str(tmp_path), "model": {"folder": "base"}, "actor": actor})
        self.run_folder = config.path
        self.sidecar = Sidecar(
            "one", config, self.bus, self.server, self.server if owned else None, tell=lambda text: None
        )

    def version(self, number: int, name: str, probe_of: str = "") -> PolicyVersion:
        folder = self.run_folder / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.safetensors").write_bytes(name.encode())
        digest = hashlib.sha256(name.encode()).hexdigest()
        probe = Probe(IDS.tobytes(), expected(probe_of or name).tobytes(), tolerance=0.1)
        return PolicyVersion("r", number, str(folder), {"model.safetensors": digest}, probe)


def play(scene: Scene, script: Callable[[], Awaitable[None]]) -> None:
    """Run the sidecar while ``script`` runs."""

    async def main() -> None:
        task = asyncio.create_task(scene.sidecar.run())
        try:
            await script()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


def serves(version: int) -> Callable[[ActorStatus], bool]:
    return lambda status: status.serving and status.version == version


def test_weights_change_only_while_paused_and_get_their_label_after_the_proof(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    async def script() -> None:
        await scene.bus.announce(scene.version(0, "a"))
        await scene.bus.until(serves(0))
        scene.server.calls.clear()
        await scene.bus.announce(scene.version(1, "bb"))
        status = await scene.bus.until(serves(1))
        assert status.proof == 0.0
        await scene.bus.until(lambda status: status.load == ActorLoad(7, 2, 0.5))

    play(scene, script)
    assert scene.server.calls == ["pause", f"label {provisional(1)}", "load", "reset", "resume", "probe", "label v1"]


def test_the_version_before_is_served_until_the_next_is_proven(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    async def script() -> None:
        await scene.bus.announce(scene.version(0, "a"))
        await scene.bus.until(serves(0))
        scene.server.gate = asyncio.Event()
        await scene.bus.announce(scene.version(1, "bb"))
        loading = await scene.bus.until(lambda status: status.note == "loading v1")
        while scene.server.label != provisional(1):
            await asyncio.sleep(0)
        beats = len(scene.bus.told)
        while len(scene.bus.told) < beats + 3:
            await asyncio.sleep(0.001)
        assert all(serves(0)(status) for status in [loading, *scene.bus.told[beats:]])
        scene.server.gate.set()
        await scene.bus.until(serves(1))

    play(scene, script)
    assert len(scene.server.starts) == 1, "a label that changes during an update is no reason to start over"


def test_server_starts_on_the_announced_weights_and_is_proven_without_a_push(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.bus.announced = scene.version(4, "dddd")
    play(scene, lambda: scene.bus.until(serves(4)))
    assert scene.server.starts == ["dddd"]
    assert scene.server.calls == [f"label {UNPROVEN}", "probe", "label v4"]


def test_without_an_announcement_the_base_model_is_up_but_not_serving(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    async def script() -> None:
        status = await scene.bus.until(lambda status: "no policy version" in status.note)
        assert not status.serving and status.version == -1

    play(scene, script)
    assert scene.server.starts == ["base"]


def test_failed_proof_is_not_served_and_is_tried_again_from_the_files(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.bus.announced = scene.version(0, "a", probe_of="bb")

    async def script() -> None:
        await scene.bus.until(lambda status: "probe refused" in status.note)
        while scene.server.calls.count("probe") < 3:
            await asyncio.sleep(0)
        assert not any(status.serving for status in scene.bus.told)
        await scene.bus.announce(scene.version(1, "bb"))
        await scene.bus.until(serves(1))

    play(scene, script)
    assert scene.server.calls.count("load") == scene.server.calls.count("probe") - 1
    assert "label v0" not in scene.server.calls


def test_what_unproven_weights_are_sampling_is_thrown_away(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    async def script() -> None:
        await scene.bus.announce(scene.version(0, "a"))
        await scene.bus.until(serves(0))
        scene.server.calls.clear()
        await scene.bus.announce(scene.version(1, "bb", probe_of="a"))
        refused = await scene.bus.until(lambda status: "probe refused" in status.note)
        assert (refused.serving, refused.version) == (False, -1)
        while "abort" not in scene.server.calls:
            await asyncio.sleep(0)
        assert scene.server.calls[-2:] == ["probe", "abort"], "nothing is sampled again before a good load"
        await scene.bus.announce(scene.version(2, "ccc"))
        await scene.bus.until(serves(2))

    play(scene, script)


def test_a_server_that_cannot_throw_it_away_is_started_anew(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    async def script() -> None:
        await scene.bus.announce(scene.version(0, "a"))
        await scene.bus.until(serves(0))
        scene.server.fail |= {"probe": "no answer", "abort": "no answer"}
        await scene.bus.announce(scene.version(1, "bb"))
        while len(scene.server.starts) < 2:
            await asyncio.sleep(0.001)
        scene.server.fail.clear()
        await scene.bus.until(serves(1))

    play(scene, script)
    assert set(scene.server.starts[1:]) == {"bb"}


def test_damaged_files_are_never_loaded(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    async def script() -> None:
        await scene.bus.announce(scene.version(0, "a"))
        await scene.bus.until(serves(0))
        scene.server.calls.clear()
        damaged = scene.version(1, "bb")
        (Path(damaged.folder) / "model.safetensors").write_bytes(b"other")
        await scene.bus.announce(damaged)
        refused = await scene.bus.until(lambda status: "announced was" in status.note)
        assert scene.server.calls == []
        assert serves(0)(refused), "what was there is untouched"
        (Path(damaged.folder) / "model.safetensors").write_bytes(b"bb")
        await scene.bus.until(serves(1))

    play(scene, script)


def test_a_server_is_not_started_on_damaged_files_but_on_the_base_model(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.bus.announced = scene.version(3, "dddd")
    (Path(scene.bus.announced.folder) / "model.safetensors").write_bytes(b"other")

    async def script() -> None:
        await scene.bus.until(lambda status: "announced was" in status.note)
        assert not any(status.serving for status in scene.bus.told)
        (Path(scene.bus.announced.folder) / "model.safetensors").write_bytes(b"dddd")
        await scene.bus.until(serves(3))

    play(scene, script)
    assert scene.server.starts == ["base"]
    assert scene.server.weights == "dddd"


def test_a_version_that_cannot_be_built_is_named_and_the_one_before_stays(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    async def script() -> None:
        await scene.bus.announce(scene.version(0, "a"))
        await scene.bus.until(serves(0))
        await scene.bus.announce(msgspec.structs.replace(scene.version(1, "bb"), form="adapter", onto=0))
        refused = await scene.bus.until(lambda status: "goes onto, is not there" in status.note)
        assert serves(0)(refused)

    play(scene, script)


def test_failed_load_leaves_the_server_paused_until_a_good_one(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    async def script() -> None:
        await scene.bus.announce(scene.version(0, "a"))
        await scene.bus.until(serves(0))
        scene.server.calls.clear()
        scene.server.fail["load"] = "500: broken file"
        await scene.bus.announce(scene.version(1, "bb"))
        await scene.bus.until(lambda status: "broken file" in status.note)
        assert "resume" not in scene.server.calls
        scene.server.fail.clear()
        await scene.bus.until(serves(1))

    play(scene, script)


def test_exited_server_is_restarted_on_the_current_weights(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    async def script() -> None:
        for number, name in enumerate(("a", "bb")):
            await scene.bus.announce(scene.version(number, name))
            await scene.bus.until(serves(number))
        scene.server.exited = True
        await scene.bus.until(lambda status: not status.serving)
        await scene.bus.until(serves(1))

    play(scene, script)
    assert scene.server.starts[-1] == "bb"


def test_weights_that_are_announced_while_the_server_starts_are_loaded(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    async def script() -> None:
        await scene.bus.announce(scene.version(0, "a"))
        await scene.bus.until(serves(0))
        scene.server.starting = asyncio.Event()
        scene.server.exited = True
        await scene.bus.until(lambda status: not status.serving)
        while scene.server.starts[-1:] != ["a"]:
            await asyncio.sleep(0)
        # One update apart, so that the proof can't tell them from each other.
        await scene.bus.announce(scene.version(1, "b", probe_of="a"))
        await asyncio.sleep(0.05)
        scene.server.starting.set()
        await scene.bus.until(serves(1))

    play(scene, script)
    assert scene.server.weights == "b"


def test_one_missed_health_check_suspends_and_three_restart(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    async def script() -> None:
        await scene.bus.announce(scene.version(0, "a"))
        await scene.bus.until(serves(0))
        starts = len(scene.server.starts)
        scene.server.well = False
        await scene.bus.until(lambda status: not status.serving)
        assert len(scene.server.starts) == starts
        await scene.bus.until(serves(0))
        assert len(scene.server.starts) == starts + 1

    play(scene, script)


def test_attached_server_that_came_back_with_other_weights_is_loaded_again(tmp_path: Path) -> None:
    scene = Scene(tmp_path, owned=False)

    async def script() -> None:
        await scene.bus.announce(scene.version(0, "a"))
        await scene.bus.until(serves(0))
        await scene.server.start(Path("base"))
        await scene.bus.until(lambda status: "'default'" in status.note)
        await scene.bus.until(serves(0))

    play(scene, script)
    assert scene.server.weights == "a"


def test_first_start_that_fails_ends_the_sidecar_with_the_reason(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.server.fail["start"] = "no such model"
    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(scene.sidecar.run())
    assert caught.group_contains(ServerFailed, match="no such model")
    assert scene.bus.told[-1].note == "stopped"


def test_first_start_that_is_killed_is_tried_again_a_bounded_number_of_times(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.server.killed = 5

    async def script() -> None:
        await scene.bus.until(lambda status: status.note == "no policy version announced yet")

    play(scene, script)
    assert len(scene.server.starts) == 1
    scene = Scene(tmp_path)
    scene.server.killed = 6
    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(scene.sidecar.run())
    assert caught.group_contains(ServerKilled, match="signal 9")


def test_attached_server_that_never_answers_is_named(tmp_path: Path) -> None:
    scene = Scene(tmp_path, owned=False)
    scene.server.well = False
    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(scene.sidecar.run())
    assert caught.group_contains(ServerFailed, match="nobody answered at http://scripted:1/health")


def test_leaving_says_so_and_stops_the_server(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.bus.announced = scene.version(0, "a")
    play(scene, lambda: scene.bus.until(serves(0)))
    last = scene.bus.told[-1]
    assert (last.serving, last.note) == (False, "stopped")
    assert scene.server.exited
