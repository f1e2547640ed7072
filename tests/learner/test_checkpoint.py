import errno
import io
import threading
import time

import jax
import numpy as np
import pytest
from rich.console import Console
from tiny import init, make_config, make_streams, write_config

from learner.checkpoint import Checkpoints
from learner.mesh import make_mesh
from learner.packing import pack
from learner.retention import Retention
from learner.step import Step
from protocol.config import ConfigError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """(step, three successive states on the host, model)"""
    model = write_config(tmp_path_factory.mktemp("model"))
    step = Step(model, make_config(tmp_path_factory.mktemp("run")).learner, make_mesh("1x1"), init(model))
    states, state = [], step.init(jax.device_put(init(model), step.params))
    for seed in range(3):
        state, _ = step.update(state, pack(make_streams(4, seed), 64, 4))
        states.append(jax.device_get(state))
    return step, states, model


def checkpoints(folder, fingerprint="f", keep=2):
    out = io.StringIO()
    return Checkpoints(folder, Retention(keep), lambda step: fingerprint, Console(file=out, width=200)), out


def filled(folder, states):
    store, _ = checkpoints(folder)
    for step, state in enumerate(states, 1):
        store.save(step, state, {"probe": [step, 5]})
    store.close()


def test_the_newest_state_comes_back_bit_for_bit(tmp_path, run):
    step, states, model = run
    filled(tmp_path, states)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["2", "3"]
    at, state, facts = checkpoints(tmp_path)[0].restore(step.abstract_state(init(model)))
    assert (at, facts["probe"]) == (3, [3, 5])
    jax.tree.map(np.testing.assert_array_equal, states[2], jax.device_get(state))


def test_another_mesh_restores_the_same_numbers(tmp_path, run):
    _, states, model = run
    filled(tmp_path, states)
    other = Step(model, make_config(tmp_path, mesh="4x2").learner, make_mesh("4x2"), init(model))
    _, state, _ = checkpoints(tmp_path)[0].restore(other.abstract_state(init(model)))
    assert len(state.params["lm_head"].sharding.device_set) == 8
    jax.tree.map(np.testing.assert_array_equal, states[2], jax.device_get(state))


@pytest.mark.parametrize("damage", ["cut", "gone", "facts"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path, run, damage):
    step, states, model = run
    filled(tmp_path, states)
    files = sorted(p for p in (tmp_path / "3").rglob("*") if p.is_file())
    if damage == "cut":
        victims = [p for p in files if p.parent.name == "d"]
        assert victims
        for file in victims:
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    elif damage == "gone":
        for file in files:
            if "state" in file.parts:
                file.unlink()
    else:
        for file in (tmp_path / "3/facts").iterdir():
            file.write_text("{")
    store, out = checkpoints(tmp_path)
    at, state, _ = store.restore(step.abstract_state(init(model)))
    assert at == 2
    assert "checkpoint 3 is damaged" in out.getvalue()
    kept = tmp_path.with_name(tmp_path.name + "-unreadable") / "3-0"
    assert kept.is_dir() and not (tmp_path / "3").exists(), "nothing is deleted that might still be wanted"
    jax.tree.map(np.testing.assert_array_equal, states[1], jax.device_get(state))
    store.save(3, states[2], {"probe": []})
    assert store.settled(wait=True)
    assert store.restore(step.abstract_state(init(model)))[0] == 3


def test_training_goes_on_while_a_save_is_written(tmp_path, run, monkeypatch):
    """Donated updates in the meantime don't reach what is written, and nothing is visible before it is whole."""
    step, states, model = run
    store, _ = checkpoints(tmp_path, keep=1)
    store.save(1, states[0], {"probe": []})
    assert store.settled(wait=True)
    finalize, gate = store.saver._handler.finalize, threading.Event()
    monkeypatch.setattr(store.saver._handler, "finalize", lambda path: (gate.wait(60), finalize(path)))
    state = step.init(jax.device_put(init(model), step.params))
    before = jax.tree.map(lambda x: np.array(x, copy=True), jax.device_get(state))
    store.save(2, state, {"probe": [2]})
    for seed in range(3):
        state, _ = step.update(state, pack(make_streams(4, seed), 64, 4))
    assert not store.settled()
    assert (store.steps(), store.oldest) == ([1], 1), "half a checkpoint is none, and what a restart needs stays"
    gate.set()
    assert store.settled(wait=True) and store.steps() == [2]
    _, restored, facts = store.restore(step.abstract_state(init(model)))
    assert facts["probe"] == [2]
    jax.tree.map(np.testing.assert_array_equal, before, jax.device_get(restored))


def test_a_save_of_little_memory_is_written_before_training_goes_on(tmp_path, run):
    """A part of the state at a time: the updates after it don't reach the parts that come late."""
    step, _, model = run
    store = Checkpoints(tmp_path, Retention(1), lambda step: "f", Console(), memory_gb=2e-5)
    state = step.init(jax.device_put(init(model), step.params))
    sizes = [leaf.nbytes for leaf in jax.tree.leaves(state)]
    assert sum(sizes) > 5 * 2e4 > 5 * max(sizes), "several parts, of several parameters"
    before = jax.tree.map(lambda x: np.array(x, copy=True), jax.device_get(state))
    store.save(1, state, {"probe": []})
    assert (store.writing, store.steps()) == (None, [1])
    step.update(state, pack(make_streams(4, 0), 64, 4))
    _, restored, _ = store.restore(step.abstract_state(init(model)))
    jax.tree.map(np.testing.assert_array_equal, before, jax.device_get(restored))


def test_a_save_that_fails_while_training_goes_on_is_noticed_and_leaves_nothing(tmp_path, run, monkeypatch):
    step, states, _ = run
    store, _ = checkpoints(tmp_path)
    store.save(1, states[0], {"probe": []})
    assert store.settled(wait=True)

    def fail(path):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(store.saver._handler, "finalize", fail)
        store.save(2, states[1], {"probe": []})
        with pytest.raises(OSError, match="No space"):
            deadline = time.monotonic() + 60
            while not store.settled() and time.monotonic() < deadline:
                time.sleep(0.01)
    assert [path.name for path in tmp_path.iterdir()] == ["1"]
    assert store.settled() and store.steps() == [1], "it is said once"
    store.save(2, states[1], {"probe": []})
    assert store.settled(wait=True) and store.steps() == [1, 2]


def test_the_best_and_every_mth_checkpoint_stay(tmp_path, run):
    _, states, _ = run
    scores = {1: 0.5, 2: 0.75}
    store = Checkpoints(tmp_path, Retention(1, every=4, best=1), lambda step: "f", Console(), lambda: scores)
    there = []
    for step in range(1, 7):
        store.save(step, states[step % 3], {"probe": []})
        assert store.settled(wait=True)
        there.append(store.steps())
    assert there == [[1], [2], [2, 3], [2, 4], [2, 4, 5], [2, 4, 6]]
    assert store.oldest == 6, "a restart doesn't need the best one"


def test_leavings_of_a_killed_run_are_swept(tmp_path, run):
    filled(tmp_path, run[1])
    for name in ("4.orbax-checkpoint-tmp-0", ".1.old"):
        (tmp_path / name).mkdir()
    checkpoints(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "3"]


def test_a_save_that_was_cut_short_is_not_seen(tmp_path, run):
    step, states, model = run
    filled(tmp_path, states)
    (tmp_path / "4.orbax-checkpoint-tmp-0").mkdir()
    assert checkpoints(tmp_path)[0].restore(step.abstract_state(init(model)))[0] == 3


def test_another_learning_configuration_is_refused(tmp_path, run):
    step, states, model = run
    filled(tmp_path, states)
    with pytest.raises(ConfigError, match="another learning configuration"):
        checkpoints(tmp_path, fingerprint="g")[0].restore(step.abstract_state(init(model)))
    # Other shapes are another configuration as well, not damage.
    wider = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((*leaf.shape, 2), leaf.dtype), step.abstract_state(init(model))
    )
    with pytest.raises(ConfigError, match="another learning configuration"):
        checkpoints(tmp_path, fingerprint="g")[0].restore(wider)
    assert (tmp_path / "3").is_dir()


def test_nothing_saved_is_none(tmp_path, run):
    step, _, model = run
    assert checkpoints(tmp_path)[0].restore(step.abstract_state(init(model))) is None
