"""Killed at any instant: what is on disk is whole, and a restart completes the rest."""

from __future__ import annotations

import errno
import io
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from rich.console import Console
from tiny import init, make_config, make_model, write_config

from learner import train as loop
from learner.checkpoint import Checkpoints
from learner.errors import CheckpointFailed, DiskFull
from learner.mesh import make_mesh
from learner.retention import Retention
from learner.room import is_full, with_room
from learner.step import Step
from learner.weights import WEIGHTS, WeightStore, file_digest
from protocol.records import Probe

ROOT = Path(__file__).parents[2]
PROBE = Probe(b"", b"", 0.05)


class Killed(BaseException):
    pass


class Kill:
    """Raises instead of the n-th change to the file system under ``folder``, and of every one after it: a dead
    process cleans nothing up."""

    EVENTS = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.unlink", "open")

    def __init__(self):
        self.left: int | None = None
        self.folder = ""
        sys.addaudithook(self)

    def __call__(self, event: str, arguments: tuple) -> None:
        if self.left is None or event not in self.EVENTS:
            return
        writes = event != "open" or (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR))
        if writes and self._concerns(arguments):
            self.left -= 1
            if self.left < 0:
                raise Killed

    def _concerns(self, arguments: tuple) -> bool:
        # Relative names are those of shutil.rmtree inside an open folder.
        name = os.fsdecode(arguments[0]) if isinstance(arguments[0], (str, bytes, os.PathLike)) else ""
        return name.startswith(self.folder) or not name.startswith("/")


@pytest.fixture(scope="module")
def kill() -> Kill:
    return Kill()


@pytest.mark.parametrize("version", [3, 2], ids=["new", "replaced"])
def test_a_version_is_whole_wherever_its_writer_dies(tmp_path, kill, version):
    config = make_model(tmp_path / "base")
    (tmp_path / "base/tokenizer.json").write_text("{}")
    params = [init(config, seed) for seed in range(4)]
    before = WeightStore(tmp_path / "before", tmp_path / "base", "float32", keep=2)
    digests = {v: {before.write("tiny", v, params[v], PROBE).sha256[WEIGHTS]} for v in range(3)}
    new = params[3]
    known = digests | {version: digests.get(version, set()) | {_digest(tmp_path, new)}}

    for allowed in range(200):
        folder = tmp_path / "weights"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tmp_path / "before", folder)
        store = WeightStore(folder, tmp_path / "base", "float32", keep=2)
        kill.folder, kill.left = str(folder), allowed
        try:
            store.write("tiny", version, new, PROBE)
            over = True
        except Killed:
            over = False
        finally:
            kill.left = None
        for place in folder.glob("v*"):
            assert file_digest(place / WEIGHTS) in known[int(place.name[1:])], (allowed, place)
            assert {"config.json", "tokenizer.json"} < {file.name for file in place.iterdir()}, (allowed, place)
        assert WeightStore(folder, tmp_path / "base", "float32", keep=2).write("tiny", version, new, PROBE).sha256
        kept = ["v000000", "v000002", "v000003"] if version == 3 else ["v000000", "v000001", "v000002"]
        assert sorted(entry.name for entry in folder.iterdir()) == kept, allowed
        if over:
            break
    assert 10 <= allowed < 199


def _digest(tmp_path: Path, params) -> str:
    store = WeightStore(tmp_path / "alone", tmp_path / "base", "float32", keep=2)
    return store.write("tiny", 1, params, PROBE).sha256[WEIGHTS]


_COPIES = 10

SAVER = """
import sys
import jax
from rich.console import Console
from tiny import init, make_config, write_config
from learner.checkpoint import Checkpoints
from learner.mesh import make_mesh
from learner.retention import Retention
from learner.step import Step
from pathlib import Path
folder = Path(sys.argv[1])
model = write_config(folder / "model")
step = Step(model, make_config(folder).learner, make_mesh("1x1"), init(model))
state = step.init(jax.device_put(init(model), step.params))
store = Checkpoints(folder / "checkpoints", Retention(2), lambda step: "f", Console())
for number in range(1, 10_000):
    print("begin", number, flush=True)
    store.save(number, state, {"probe": [number]})
    store.settled(wait=True)
    print("saved", number, flush=True)
"""


def test_a_checkpoint_is_there_whenever_its_writer_dies(tmp_path):
    """The writer is stopped again and again, and what is on disk then is what a kill would leave."""
    model = write_config(tmp_path / "model")
    step = Step(model, make_config(tmp_path).learner, make_mesh("1x1"), init(model))
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests/learner'}"}
    writer = subprocess.Popen(
        [sys.executable, "-c", SAVER, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        saved, taken = 0, 0
        for line in writer.stdout:
            word, number = line.split()
            if word == "saved":
                saved = int(number)
            elif saved >= 3:
                # Somewhere in the middle of saving, or of deleting what it replaces.
                time.sleep(0.005 * taken)
                os.kill(writer.pid, signal.SIGSTOP)
                shutil.copytree(tmp_path / "checkpoints", tmp_path / f"copy-{taken}")
                (tmp_path / f"copy-{taken}.saved").write_text(str(saved))
                os.kill(writer.pid, signal.SIGCONT)
                taken += 1
                if taken == _COPIES:
                    break
    finally:
        writer.kill()
        writer.communicate()
    cut = 0
    for number in range(_COPIES):
        folder = tmp_path / f"copy-{number}"
        cut += any("tmp" in entry.name for entry in folder.iterdir())
        out = io.StringIO()
        store = Checkpoints(folder, Retention(2), lambda step: "f", Console(file=out))
        at, _, facts = store.restore(step.abstract_state(init(model)))
        assert at >= int((tmp_path / f"copy-{number}.saved").read_text()), out.getvalue()
        assert facts["probe"] == [at]
        assert out.getvalue() == "", "nothing on disk is half a checkpoint"
    assert cut, "it was never stopped in the middle of a save: the test shows nothing"


def full(error: Exception, times: int, then=lambda *args: "written"):
    """A write that finds the disk full so many times."""
    calls = iter([error] * times)

    def write(*args):
        if (fault := next(calls, None)) is not None:
            raise fault
        return then(*args)

    return write


TENSORSTORE = ValueError("RESOURCE_EXHAUSTED: Failed to write 9 bytes: No space left on device [os_error_code='28']")


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), OSError(errno.EDQUOT, "quota"), TENSORSTORE])
def test_room_is_waited_for_and_told(tmp_path, monkeypatch, error):
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    out = io.StringIO()
    console = Console(file=out, width=300)
    assert is_full(error)
    assert with_room("checkpoint 4", tmp_path, 10, 60, console, full(error, 3)) == "written"
    assert pauses == [0.5, 1.0, 2.0]
    told = out.getvalue().splitlines()
    assert told[0].startswith(f"no room for checkpoint 4 in {tmp_path} (") and told[0].endswith("waiting up to 60 s")
    assert told[1] == "there is room: checkpoint 4 written"


def test_what_can_not_fit_is_not_begun(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    begun: list[int] = []
    with pytest.raises(DiskFull, match=r"1,073,741,824 MiB are needed"):
        with_room("checkpoint 4", tmp_path, 2**50, 0.05, Console(file=io.StringIO()), lambda: begun.append(1))
    assert not begun


def test_at_the_bound_it_says_what_to_do_and_other_faults_pass(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    console = Console(file=io.StringIO())
    with pytest.raises(DiskFull, match=r"for 0\.05 s \(learner\.disk_wait\): make room there, then run"):
        with_room("checkpoint 4", tmp_path, 10, 0.05, console, full(OSError(errno.ENOSPC, "full"), 10_000_000))
    with pytest.raises(OSError, match="denied"):
        with_room("checkpoint 4", tmp_path, 10, 60, console, full(OSError(errno.EACCES, "denied"), 1))


def test_a_full_disk_holds_back_acknowledgement_and_announcement(tmp_path, monkeypatch):
    """Rule 13: the loop stops before it says of an update what is not so."""
    from test_train import Source

    config = make_config(tmp_path, disk_wait=0.01)
    make_model(config.path / "base")
    events: list = []

    def run(**patches) -> list:
        events.clear()
        with monkeypatch.context() as patch:
            for name, at in patches.items():
                owner = {"save": Checkpoints, "write": WeightStore}[name]
                original = getattr(owner, name)

                def failing(self, first, second, *rest, _original=original, _at=at):
                    if _at in (first, second):
                        raise OSError(errno.ENOSPC, "No space left on device")
                    return _original(self, first, second, *rest)

                patch.setattr(owner, name, failing)
            announce = lambda version: events.append(("announced", version.version))  # noqa: E731
            with loop.Trainer(config, Source(events), announce, Console(file=io.StringIO())) as trainer:
                trainer.run(4)
        return list(events)

    with pytest.raises(DiskFull):
        run(save=2)
    assert events == [("announced", 0), ("announced", 1), ("acknowledged", 0), ("announced", 2)]
    with pytest.raises(DiskFull):
        run(write=3)
    assert events[-2:] == [("announced", 2), ("acknowledged", 1)]
    assert run() == [("announced", s) for s in (2,)] + [
        event for s in (2, 3) for event in (("announced", s + 1), ("acknowledged", s))
    ]


def test_a_save_lost_to_a_full_disk_is_made_up_for_at_the_next_step(tmp_path, monkeypatch):
    """It fails while training goes on: the run says so, saves the next state instead, and lets the log go no sooner."""
    from test_train import Source

    config = make_config(tmp_path, steps=5, checkpoint_every=2, keep_checkpoints=1)
    make_model(config.path / "base")
    out, source = io.StringIO(), Source([])
    with loop.Trainer(config, source, lambda version: None, Console(file=out, width=200)) as trainer:
        store, original = trainer.checkpoints, trainer.checkpoints.saver._handler.finalize
        monkeypatch.setattr(store.saver._handler, "finalize", full(OSError(errno.ENOSPC, "full"), 1, original))
        settled = store.settled

        def patient(wait: bool = False) -> bool:
            # As if a step took longer than a save.
            return settled(wait=True)

        monkeypatch.setattr(store, "settled", patient)
        trainer.run(5)
    assert "checkpoint 2 was not written: the disk is full; saving the state after 3 updates instead" in out.getvalue()
    assert source.released[0] == 3 and source.released[-1] == 5, "nothing is released for a checkpoint that isn't there"
    assert store.steps() == [5]


def test_any_other_fault_of_a_save_stops_the_run_at_the_next_step(tmp_path, monkeypatch):
    from test_train import Source

    config = make_config(tmp_path, steps=5, checkpoint_every=2)
    make_model(config.path / "base")
    events: list = []
    with pytest.raises(CheckpointFailed, match=r"checkpoint 2 could not be written.*denied"):
        with loop.Trainer(config, Source(events), lambda version: None, Console(file=io.StringIO())) as trainer:
            store = trainer.checkpoints
            monkeypatch.setattr(store.saver._handler, "finalize", full(OSError(errno.EACCES, "denied"), 1))
            settled = store.settled
            monkeypatch.setattr(store, "settled", lambda wait=False: settled(wait=True))
            trainer.run(5)
    assert events == [("acknowledged", 0), ("acknowledged", 1)], "step 2 was saved, step 3 found out"


def test_a_checkpoint_that_failed_leaves_nothing_and_is_made_again(tmp_path, monkeypatch):
    model = write_config(tmp_path / "model")
    step = Step(model, make_config(tmp_path).learner, make_mesh("1x1"), init(model))
    state = step.init(jax.device_put(init(model), step.params))
    store = Checkpoints(tmp_path / "checkpoints", Retention(2), lambda step: "f", Console(file=io.StringIO()))
    for number in (1, 2):
        store.save(number, state, {"probe": [number]})
    assert store.settled(wait=True) and store.oldest == 1

    def cut(folder: Path, **_) -> None:
        (folder.with_name(f"{folder.name}.orbax-checkpoint-tmp") / "state").mkdir(parents=True)
        raise TENSORSTORE

    with monkeypatch.context() as patch:
        patch.setattr(store.saver, "save", cut)
        with pytest.raises(ValueError, match="No space"):
            store.save(3, state, {"probe": [3]})
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["1", "2"]
    store.save(3, state, {"probe": [3]})
    assert store.settled(wait=True)
    at, restored, _ = store.restore(step.abstract_state(init(model)))
    assert (at, store.oldest) == (3, 2)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state), jax.device_get(restored))
