"""What an update says between devices: weights a layer at a time, gradients to where their parameters are, and no more.

Eight devices, 2 x 4. The sizes are such that no two arrays of interest have one shape.
"""

from __future__ import annotations

import math

import jax
import pytest
from tiny import make_config, write_config

from learner.collectives import collectives
from learner.dry_run import lower
from learner.hlo import Program
from learner.mesh import is_matrix, is_stacked, make_mesh
from learner.models.huggingface import param_shapes
from learner.step import Step

DENSE = {
    "vocab_size": 1024,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
HYBRID = DENSE | {
    "model_type": "qwen3_5_text",
    "num_hidden_layers": 6,
    "full_attention_interval": 2,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 12,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
ROWS, TOKENS = 2, 512


@pytest.fixture(scope="module", params=["dense", "hybrid"])
def update(request, tmp_path_factory):
    """(parameter shapes, the compiled gradient step)."""
    folder = tmp_path_factory.mktemp(request.param)
    model = write_config(folder, **(DENSE if request.param == "dense" else HYBRID))
    options = {"compute_dtype": "bfloat16", "row_tokens": TOKENS, "rows_per_microbatch": ROWS}
    learner = make_config(folder, mesh="2x4", **options).learner
    model = type(model)(**{**model.__dict__, "compute_dtype": "bfloat16"})
    shapes = param_shapes(model)
    step = Step(model, learner, make_mesh("2x4"), shapes)
    return shapes, Program(lower(step, learner, shapes)["accumulate"].compile().as_text())


def stacked_matrices(shapes):
    for path, leaf in jax.tree_util.tree_leaves_with_path(shapes):
        if is_stacked(path) and is_matrix(path, leaf):
            yield path, leaf


def test_no_device_ever_holds_a_whole_stack(update):
    shapes, program = update
    whole = {leaf.shape for _, leaf in stacked_matrices(shapes)}
    held = {array.shape for instruction in program.instructions for array in instruction.results}
    assert not held & whole


def test_no_device_ever_holds_a_whole_embedding_or_head(update):
    shapes, program = update
    whole = {shapes["embed_tokens"].shape, shapes["lm_head"].shape}
    held = {array.shape for instruction in program.instructions for array in instruction.results}
    assert not held & whole


def test_each_matrix_is_gathered_once_forward_and_once_backward(update):
    shapes, program = update
    gathered = {}
    for collective in collectives(program):
        if collective.kind == "all-gather":
            for array in collective.arrays:
                gathered[array.shape] = gathered.get(array.shape, 0) + collective.times
    wanted = {}
    for _, leaf in stacked_matrices(shapes):
        wanted[leaf.shape[1:]] = wanted.get(leaf.shape[1:], 0) + 2 * leaf.shape[0]
    assert {shape: gathered.get(shape) for shape in wanted} == wanted


def test_sequences_are_swapped_for_heads_and_never_gathered(update):
    _, program = update
    found = collectives(program)
    assert any(c.kind == "all-to-all" for c in found)
    tokens = ROWS // 2 * TOKENS
    # A row's tokens, whole on a device, have at most what one device's heads or columns take of each.
    wide = [
        c
        for c in found
        if c.kind in ("all-gather", "all-reduce")
        for a in c.arrays
        if TOKENS in a.shape and math.prod(a.shape) >= tokens * 64
    ]
    assert not wide
