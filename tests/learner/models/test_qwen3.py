import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner.logprobs import at_places, token_logprobs
from learner.models.family import head, hidden_states
from learner.models.huggingface import export_tensors, load_params, read_config
from learner.packing import Stream, pack

ROOT = Path(__file__).parents[3]
ACTOR = ROOT / ".venv/actor/bin/python"


@pytest.fixture(scope="module", params=["untied", "tied"])
def reference(request, tmp_path_factory):
    if not ACTOR.exists():
        pytest.skip("the actor environment, which has transformers, is missing: run ./bin/setup")
    folder = tmp_path_factory.mktemp(request.param)
    script = Path(__file__).with_name("transformers_reference.py")
    subprocess.run([ACTOR, script, folder, request.param], check=True, capture_output=True, timeout=120)
    return folder, np.load(folder / "reference.npz")


def test_logits_match_transformers(reference):
    folder, expected = reference
    config = read_config(folder)
    params = load_params(config, folder)
    for i in range(3):
        ids = expected[f"ids{i}"][None]
        hidden = hidden_states(config, params, ids, np.arange(ids.shape[1])[None], np.ones_like(ids))
        difference = np.abs(np.asarray(hidden @ head(params))[0] - expected[f"logits{i}"])
        assert difference.max() / np.abs(expected[f"logits{i}"]).max() < 1e-4


@pytest.mark.parametrize("remat", [True, False])
def test_packed_gradients_match_transformers(reference, remat):
    folder, expected = reference
    config = read_config(folder, remat=remat)
    params = load_params(config, folder)
    streams = []
    for i in range(3):
        ids = expected[f"ids{i}"].astype(np.int32)
        places = np.arange(1, len(ids))
        streams.append(Stream(ids, places, np.ones(len(places)), np.zeros(len(places))))
    (batch,) = pack(streams, row_tokens=96, rows_per_microbatch=1)
    assert batch.segments.max() == 3, "the three must share a row for packing to be tested"

    def loss(params):
        hidden = hidden_states(config, params, batch.ids, batch.positions, batch.segments)
        logprobs, _ = token_logprobs(at_places(hidden, batch.index), head(params), batch.targets, chunk=10)
        return jnp.sum(jnp.where(batch.valid, logprobs, 0.0))

    value, grads = jax.jit(jax.value_and_grad(loss))(params)
    assert float(value) == pytest.approx(float(expected["loss"]), rel=1e-5)
    for name, grad in export_tensors(config, grads, "float32"):
        wanted = expected[f"grad:{name}"]
        assert np.linalg.norm(grad - wanted) / np.linalg.norm(wanted) < 1e-4, name


def test_a_segment_does_not_see_its_neighbours(reference):
    folder, _ = reference
    config = read_config(folder)
    params = load_params(config, folder)
    ids = np.arange(24, dtype=np.int32)[None] % 97
    segments = np.repeat([1, 2, 3], 8)[None]
    positions = np.tile(np.arange(8), 3)[None]
    apply = jax.jit(lambda ids, segments: hidden_states(config, params, ids, positions, segments))
    before = apply(ids, segments)
    changed = apply(np.where(segments == 2, ids, 50), segments)
    np.testing.assert_array_equal(before[0, 8:16], changed[0, 8:16])
    leaking = apply(ids, np.ones_like(segments))
    assert np.abs(before[0, 8:16] - leaking[0, 8:16]).max() > 0.1
