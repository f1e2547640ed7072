"""Two processes of two devices: they make one device's updates, end together, and go on to the same bits.

benchmarks/many_processes.py shows the same of three processes of eight devices, and each gradient.
"""

from __future__ import annotations

import time

import numpy as np
import pytest
from many import finish, metrics, prepare, start
from tiny import make_model

from learner.models.huggingface import load_params

STEPS, BOUND = 6, 8.0


def weights(config, version: int) -> np.ndarray:
    """All of a version's, flat."""
    model = make_model(config.path / "shapes")
    params = load_params(model, config.path / f"weights/v{version:06d}")
    return np.concatenate([np.asarray(leaf).ravel() for leaf in _leaves(params)])


def _leaves(params):
    import jax

    return jax.tree.leaves(params)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    config = prepare(folder, STEPS, mesh="2x2")
    return config, finish(start(folder, 2, 2))


def test_they_make_one_devices_updates_and_the_first_one_speaks(undisturbed, tmp_path):
    config, ((code, printed), (other_code, other_printed)) = undisturbed
    assert (code, other_code) == (0, 0), printed + other_printed
    assert "2 processes, 4 devices" in printed and f"step {STEPS}/{STEPS}" in printed
    assert "step" not in other_printed
    alone = prepare(tmp_path, STEPS)
    [(code, printed)] = finish(start(tmp_path, 1, 1))
    assert code == 0, printed
    for one, other in zip(metrics(alone), metrics(config), strict=True):
        for name in ("loss", "grad_norm", "entropy", "staleness_mean", "sampled_tokens", "total_tokens"):
            assert other[name] == pytest.approx(one[name], rel=1e-5, abs=1e-6), name
    one, other = weights(alone, STEPS), weights(config, STEPS)
    assert np.linalg.norm(one - other) <= 1e-5 * np.linalg.norm(one)


def test_killed_in_mid_step_all_end_and_the_resumed_run_is_the_same_bits(undisturbed, tmp_path):
    straight, _ = undisturbed
    config = prepare(tmp_path, STEPS, mesh="2x2", process_timeout=BOUND)
    survivor, victim = processes = start(tmp_path, 2, 2)
    assert any(line.startswith("step 5/") for line in survivor.stdout), "they ended before step 5"
    victim.kill()
    killed = time.monotonic()
    (code, printed), (victims, _) = finish(processes)
    assert time.monotonic() - killed < BOUND + 2
    assert (code, victims) == (3, -9), printed
    assert "process 0 of 2 ends with another one: nothing was heard of process 1" in printed
    assert "Traceback" not in printed
    assert not (config.path / f"weights/v{STEPS:06d}").exists()

    (code, printed), (other, _) = finish(start(tmp_path, 2, 2))
    assert (code, other) == (0, 0), printed
    assert "restored the state after" in printed
    for version in range(STEPS - 1, STEPS + 1):
        np.testing.assert_array_equal(weights(straight, version), weights(config, version))
    assert [row["loss"] for row in metrics(config)] == [row["loss"] for row in metrics(straight)]
