"""Two processes of two devices: they make one device's updates, end together, and go on to the same bits.

benchmarks/many_processes.py shows the same of three processes of eight devices, and each gradient.
"""

from __future__ import annotations

import io
import time

import jax
import numpy as np
import pytest
from many import finish, metrics, prepare, start
from rich.console import Console
from safetensors.numpy import load_file

from learner.batches import LogBatches
from learner.models.huggingface import load_params
from learner.train import Trainer, read_model
from protocol.versions import read_record

STEPS, BOUND = 6, 8.0


def weights(config, version: int) -> np.ndarray:
    """All of a version's, flat."""
    params = load_params(read_model(config), config.path / f"weights/v{version:06d}")
    return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(params)])


def train_alone(folder, steps: int, **learner):
    """The same run on one device of this process."""
    config = prepare(folder, steps, **learner)
    source = LogBatches([folder / "log.jsonl"])
    with Trainer(config, source, lambda version: None, Console(file=io.StringIO())) as trainer:
        trainer.run(steps)
    return config


def assert_same_metrics(one, other) -> None:
    for row, like in zip(metrics(one), metrics(other), strict=True):
        for name in ("loss", "grad_norm", "entropy", "staleness_mean", "sampled_tokens", "total_tokens"):
            assert like[name] == pytest.approx(row[name], rel=1e-5, abs=1e-6), name


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
    alone = train_alone(tmp_path, STEPS)
    assert_same_metrics(alone, config)
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


def test_they_train_adapters_as_one_device_does(tmp_path):
    """Each writes its part of version 0; the first one alone writes the adapters."""
    lora = {"lora": {"rank": 4, "alpha": 8.0, "targets": ["q_proj", "down_proj"]}, "weights_dtype": "bfloat16"}
    alone, many = (tmp_path / name for name in ("alone", "many"))
    one, config = train_alone(alone, 2, **lora), prepare(many, 2, mesh="2x2", **lora)
    (code, printed), (other, other_printed) = finish(start(many, 2, 2))
    assert (code, other) == (0, 0), printed + other_printed
    assert_same_metrics(one, config)
    assert len(read_record(config.path / "weights/v000000").sha256) == 2
    for version in (1, 2):
        ours, theirs = (
            load_file(at.path / f"weights/v{version:06d}/adapter_model.safetensors") for at in (one, config)
        )
        assert ours.keys() == theirs.keys() and len(ours) == 8
        for name, tensor in ours.items():
            assert np.linalg.norm(tensor - theirs[name]) <= 1e-5 * np.linalg.norm(tensor) > 0, name
