import io
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import msgspec
import numpy as np
import pytest
import yaml
from rich.console import Console
from tiny import make_batch, make_config, make_model, make_streams, write_log

from learner.batches import Delivery, LogBatches
from learner.errors import BatchError
from learner.main import learner as verb
from learner.mesh import make_mesh
from learner.models.huggingface import load_params, param_shapes
from learner.packing import pack
from learner.step import PROBE_TOKENS, Step, sampled_logprobs
from learner.train import Trainer
from protocol.config import ConfigError
from protocol.errors import RecordMissing

ROOT = Path(__file__).parents[2]


class Source:
    """Batches made by hand; notes what the loop does, in order."""

    def __init__(self, events, equal=(), stale=0):
        self.events, self.equal, self.stale, self.released = events, equal, stale, []

    def next(self, step):
        batch, trajectories = make_batch(step, equal=step in self.equal, older=min(step, self.stale))
        known = {trajectory.id: trajectory for trajectory in trajectories}
        return Delivery(
            batch, lambda ids: [known[id] for id in ids], lambda: self.events.append(("acknowledged", step))
        )

    def release(self, before):
        self.released.append(before)


def train(folder, steps=4, equal=(), stale=0, **learner):
    """(announced versions, events, printed text) of one run of the loop, over batches ``stale`` versions behind."""
    config = make_config(folder, **learner)
    if not (config.path / "base").exists():
        make_model(config.path / "base")
    versions, events, out = [], [], io.StringIO()

    def announce(version):
        versions.append(version)
        events.append(("announced", version.version))

    with Trainer(config, Source(events, equal, stale), announce, Console(file=out, width=200)) as trainer:
        trainer.run(steps)
    return versions, events, out.getvalue()


def metrics(folder):
    return [json.loads(line) for line in (folder / "tiny/metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return folder, *train(folder, equal=(2,))


def test_versions_and_acknowledgements_alternate(whole):
    _, versions, events, _ = whole
    assert events == [("announced", 0)] + [e for s in range(4) for e in (("announced", s + 1), ("acknowledged", s))]
    assert [v.final for v in versions] == [False, False, False, False, True]


def test_a_batch_without_trained_groups_is_a_version_with_the_same_weights(whole):
    folder, versions, _, printed = whole
    digests = [v.sha256["model.safetensors"] for v in versions]
    assert digests[3] == digests[2]
    assert len(set(digests)) == 4
    assert "step 3/4" in printed and "no update: no advantage" in printed
    assert printed.count(" left\n") == 4 and "0:00:00 left" in printed.splitlines()[-1]
    assert [m["applied"] for m in metrics(folder)] == [1, 1, 0, 1]


def test_metrics_of_a_step(whole):
    folder, *_ = whole
    first = metrics(folder)[0]
    batch, trajectories = make_batch(0)
    assert first["step"] == 0 and first["reward_mean"] == 0.5 and first["informative_groups"] == 2
    assert first["sampled_tokens"] == sum(t.tokens.unpack().mask.sum() for t in trajectories)
    assert first["total_tokens"] == sum(np.flatnonzero(t.tokens.unpack().mask)[-1] + 1 for t in trajectories)
    assert 0 < first["entropy"] < np.log(64)
    assert first["behaviour_difference_max"] >= first["behaviour_difference"] > 0
    assert list((folder / "tiny/tensorboard").iterdir())


def test_the_probe_is_of_the_weights_on_disk(tmp_path):
    versions, _, _ = train(tmp_path, steps=1, weights_dtype="bfloat16")
    config = make_config(tmp_path)
    model = make_model(tmp_path / "again")
    for version in versions:
        ids = np.frombuffer(version.probe.ids, "<i4")
        params = load_params(model, version.folder)
        zeros = np.zeros(len(ids) - 1)
        stream = make_streams(1)[0]._replace(ids=ids, sampled=np.arange(1, len(ids)), weights=zeros, behaviour=zeros)
        (batch,) = pack([stream], PROBE_TOKENS, 1)
        expected = sampled_logprobs(params, batch, model, 64, 1.0)[0][0, : len(ids) - 1]
        np.testing.assert_allclose(np.frombuffer(version.probe.logprobs, "<f4"), expected, rtol=1e-5, atol=1e-5)
        assert version.probe.tolerance == config.learner.proof_tolerance
    tokens = make_batch(0)[1][0].tokens.unpack()
    first = tokens.ids[: np.flatnonzero(tokens.mask)[-1] + 1]
    np.testing.assert_array_equal(np.frombuffer(versions[1].probe.ids, "<i4"), first)


def test_a_restart_goes_on_from_the_checkpoint_to_the_same_bits(tmp_path, whole):
    straight, versions, _, _ = whole
    train(tmp_path, steps=3, equal=(2,))  # checkpoints at 2 and, as the last, at 3
    lines = metrics(tmp_path)
    # The learner died while writing the line of a step that no checkpoint holds.
    with open(tmp_path / "tiny/metrics.jsonl", "a") as stream:
        stream.write('{"step": 3, "reward_mean": 9}\n{"step": 4, "rew')
    again, events, printed = train(tmp_path, equal=(2,))
    assert events[0] == ("announced", 3) and "restored the state after 3 updates" in printed
    assert again[-1].sha256 == versions[-1].sha256
    assert [m["step"] for m in metrics(tmp_path)] == [0, 1, 2, 3]
    assert metrics(tmp_path)[:3] == lines
    assert metrics(tmp_path)[3]["reward_mean"] == 0.5


def test_a_finished_run_only_announces_its_last_version_again(whole):
    folder, versions, _, _ = whole
    again, events, _ = train(folder, equal=(2,))
    assert events == [("announced", 4)]
    assert again[0].sha256 == versions[-1].sha256 and again[0].final


def test_a_stale_run_is_weighed_told_and_restarted_to_the_same_bits(tmp_path):
    versions, _, printed = train(tmp_path / "straight", stale=1, max_staleness=1)
    train(tmp_path / "cut", steps=3, stale=1, max_staleness=1)
    again, _, _ = train(tmp_path / "cut", stale=1, max_staleness=1)
    assert again[-1].sha256 == versions[-1].sha256
    assert [m["staleness_max"] for m in metrics(tmp_path / "straight")] == [0, 1, 1, 1]
    assert all(0 < m["staleness_mean"] < 1 for m in metrics(tmp_path / "straight")[1:])
    assert printed.count("stale by 0.") == 3
    assert make_config(tmp_path, max_staleness=1).learner.loss.truncated_is == 2.0


def test_a_synchronous_run_refuses_stale_tokens(tmp_path):
    with pytest.raises(BatchError, match="step 1 got the batch of step 1, rolled out with policy version 0"):
        train(tmp_path, stale=1)


def test_rows_that_the_mesh_does_not_divide_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="rows_per_microbatch .4. must be a multiple.*8"):
        train(tmp_path, mesh="8x1")


def test_too_few_devices_are_refused():
    with pytest.raises(ConfigError, match="needs 24 devices and JAX sees 8"):
        make_mesh("3x8")
    with pytest.raises(ConfigError, match="not DATAxMODEL"):
        make_mesh("3")


def learner(*arguments, **options):
    command = [sys.executable, "-m", "learner.main", *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


def replay(folder, steps):
    """Arguments of bin/learner for a replayed run in ``folder``."""
    config = make_config(folder, steps=steps, checkpoint_every=5)
    make_model(config.path / "base")
    (folder / "config.yaml").write_text(yaml.safe_dump(msgspec.to_builtins(config)))
    write_log(folder / "log.jsonl", steps)
    return "--config", folder / "config.yaml", "--replay", folder / "log.jsonl"


def test_killed_and_restarted_ends_in_the_same_bits(tmp_path):
    steps = 40
    straight = replay(tmp_path / "straight", steps)
    process = learner(*straight)
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 0, printed

    killed = replay(tmp_path / "killed", steps)
    process = learner(*killed)
    # The checkpoint of step 5 is durable by then: that of step 10 has waited for it.
    assert any(line.startswith("step 12/40") for line in process.stdout), "the learner ended before step 12"
    process.kill()
    process.communicate()
    assert process.returncode == -9
    weights = tmp_path / "killed/tiny/weights"
    assert not (weights / "v000040").exists(), "it was killed too late for this test"

    process = learner(*killed)
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 0, printed
    assert "restored the state after" in printed
    final = "tiny/weights/v000040/model.safetensors"
    assert (tmp_path / "killed" / final).read_bytes() == (tmp_path / "straight" / final).read_bytes()
    assert [m["step"] for m in metrics(tmp_path / "killed")] == list(range(steps))


def test_replay_stops_where_the_log_does(tmp_path):
    write_log(tmp_path / "log.jsonl", 2)
    source = LogBatches([tmp_path / "log.jsonl"])
    assert source.steps == [0, 1]
    with pytest.raises(RecordMissing):
        source.next(2)


def test_dry_run_prints_what_a_device_must_hold(tmp_path):
    arguments = replay(tmp_path, 2)
    process = learner(
        *arguments, "--dry-run", "--mesh", "2x4", env={k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    )
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 0, printed
    model = make_model(tmp_path / "again")
    count = sum(np.prod(x.shape) for x in jax.tree.leaves(param_shapes(model)))
    assert f"{count:,} parameters on" in printed and "mesh: 2x4" in printed
    assert "the logs hold the batches of 2 steps" in printed and "can start" in printed
    assert not (tmp_path / "tiny/checkpoints").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("learner.rows_per_microbach=3", "did you mean 'rows_per_microbatch'"),
        ("model.folder=nowhere", "names no model folder"),
        ("learner.mesh=3by8", "not DATAxMODEL"),
        ("nats.url=nats://127.0.0.1:9", "bin/nats"),
    ],
)
def test_dry_run_refuses_what_cannot_start(tmp_path, capsys, change, message):
    arguments = replay(tmp_path, 2)
    with pytest.raises(SystemExit) as exit:
        verb(config=arguments[1], set=(change, "nats.connect_timeout=1"), dry_run=True)
    assert exit.value.code == 2 and message in capsys.readouterr().err


def test_the_step_uses_the_sampling_temperature(tmp_path):
    model = make_model(tmp_path / "base")
    params = load_params(model, tmp_path / "base")
    learner = make_config(tmp_path).learner
    batches = pack(make_streams(2), 64, 4)
    sums = [Step(model, learner, make_mesh("1x1"), params, t).gradients(params, batches)[1].entropy for t in (1.0, 0.5)]
    assert float(sums[1]) < float(sums[0])
