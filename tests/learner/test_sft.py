import io

import jax
import numpy as np
import pytest
from rich.console import Console
from tiny import write_config

from learner.errors import WarmStartError
from learner.models.huggingface import load_params, param_shapes, read_config
from learner.sft import Demonstrations, init_params, make_optimizer, warm_start
from learner.warmstart import warmstart
from protocol.config import ConfigError, WarmStart

QUIET = Console(file=io.StringIO())


def demonstrations(path, count=200):
    """Eight random digits, an agent's question mark, and then the digit two places before it, copied."""
    rng = np.random.default_rng(0)
    ids, mask = [], []
    for _ in range(count):
        digits = rng.integers(0, 10, int(rng.integers(6, 10)))
        ids += [*digits, 20, digits[-2]]
        mask += [0] * len(digits) + [1, 2]
    ids = np.array(ids, np.int32)
    ends = np.flatnonzero(np.array(mask) == 2) + 1
    np.savez(path, ids=ids, mask=np.array(mask, np.uint8), offsets=np.array([0, *ends], np.int64))
    return path


@pytest.fixture
def folder(tmp_path):
    write_config(tmp_path, hidden_size=64, intermediate_size=128, head_dim=16)
    demonstrations(tmp_path / "demonstrations.npz")
    return tmp_path


def test_a_policy_learns_to_copy_and_its_weights_are_written(folder):
    config = WarmStart(steps=150, batch=16, warmup=10)
    result = warm_start(folder, folder / "demonstrations.npz", config, 0, QUIET)
    assert result["copy_errors"] <= 0.15
    assert 150 <= result["steps"] <= 300
    params = load_params(read_config(folder), folder)
    assert params["lm_head"].dtype == np.float32


def test_a_policy_that_cannot_copy_is_refused_after_twice_the_steps(folder):
    with pytest.raises(WarmStartError, match="after 4 steps .* raise warmstart.steps"):
        warm_start(folder, folder / "demonstrations.npz", WarmStart(steps=2, batch=4), 0, QUIET)
    assert not (folder / "model.safetensors").exists()


def test_the_head_starts_as_the_transposed_embedding(tmp_path):
    params = init_params(write_config(tmp_path), 0)
    np.testing.assert_array_equal(params["lm_head"], params["embed_tokens"].T)
    assert float(params["embed_tokens"].std()) == pytest.approx(0.1, rel=0.05)
    assert "lm_head" not in init_params(write_config(tmp_path, tie_word_embeddings=True), 0)


def test_muon_moves_each_layers_matrix_by_an_orthogonal_step(tmp_path):
    model = write_config(tmp_path)
    shapes = param_shapes(model)
    optimizer = make_optimizer(WarmStart(warmup=0, muon_rate=1.0), shapes)
    params = init_params(model, 0)
    keys = jax.random.split(jax.random.key(1), len(jax.tree.leaves(shapes)))
    grads = jax.tree.unflatten(
        jax.tree.structure(shapes),
        [jax.random.normal(k, s.shape) for k, s in zip(keys, jax.tree.leaves(shapes), strict=True)],
    )
    updates, _ = jax.jit(optimizer.update)(grads, jax.jit(optimizer.init)(params), params)
    for layer in np.asarray(updates["layers"]["k_proj"]["kernel"]):
        values = np.linalg.svd(layer, compute_uv=False)
        assert 0.5 < values.min() and values.max() < 1.3, "Newton-Schulz brings every singular value near 1"
    # AdamW's first step is one size for every entry.
    sizes = np.abs(updates["embed_tokens"])
    np.testing.assert_allclose(sizes, sizes.mean(), rtol=1e-2)


def test_demonstrations_beyond_the_vocabulary_are_refused(tmp_path):
    path = demonstrations(tmp_path / "d.npz")
    with pytest.raises(ConfigError, match="token id 20 is beyond the model's vocabulary of 20"):
        Demonstrations.read(path, 20)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ConfigError, match="d.npz"):
        Demonstrations.read(path, 64)
    with pytest.raises(ConfigError, match="No such file"):
        Demonstrations.read(tmp_path / "none.npz", 64)


def test_loss_weights_and_copies(tmp_path):
    data = Demonstrations.read(demonstrations(tmp_path / "d.npz"), 64)
    stream = data.stream(0, WarmStart(other_tokens_weight=0.1, copied_tokens_weight=3.0))
    np.testing.assert_allclose(stream.weights, np.choose(data.mask[1 : len(stream.ids)], [0.1, 1.0, 3.0]))
    assert (stream.weights == 3.0).sum() == 1 and (stream.weights == 1.0).sum() == 1
    assert list(np.flatnonzero(stream.behaviour == 2)) == [len(stream.ids) - 2]


@pytest.mark.parametrize("dry_run", [False, True])
def test_the_verb_names_what_is_wrong(tmp_path, capsys, dry_run):
    (tmp_path / "c.yaml").write_text(f"run: tiny\nfolder: {tmp_path}\nmodel: {{folder: base}}\n")
    with pytest.raises(SystemExit) as exit:
        warmstart(config=tmp_path / "c.yaml", dry_run=dry_run)
    assert exit.value.code == 2 and "names no model folder" in capsys.readouterr().err


def test_a_dry_run_of_the_verb_reads_the_demonstrations(tmp_path, capsys):
    (tmp_path / "c.yaml").write_text(f"run: tiny\nfolder: {tmp_path}\nmodel: {{folder: base}}\n")
    write_config(tmp_path / "tiny/base")
    demonstrations(tmp_path / "tiny/base/demonstrations.npz", count=7)
    warmstart(config=tmp_path / "c.yaml", dry_run=True)
    printed = capsys.readouterr().out
    assert "fingerprint" in printed and "7 demonstrations" in printed
    assert not (tmp_path / "tiny/base/model.safetensors").exists()
