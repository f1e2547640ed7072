"""What an update says between devices: weights a layer at a time, gradients to where their parameters are, and no more.

Eight devices, 2 x 4. The sizes are such that no two arrays of interest have one shape.
"""

from __future__ import annotations

import re
from collections import Counter

import jax
import pytest
from jax.sharding import NamedSharding
from tiny import make_config, write_config

from learner.collectives import collectives
from learner.dry_run import compile_only, lower
from learner.hlo import Program
from learner.mesh import is_matrix, is_stacked, leaf_spec, make_mesh
from learner.models.huggingface import param_shapes
from learner.step import Step

DENSE = {
    "vocab_size": 1024,
    "hidden_size": 68,
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
ROWS, TOKENS = 2, 72


@pytest.fixture(scope="module", params=["dense", "hybrid"])
def update(request, tmp_path_factory):
    """(parameter shapes, the compiled gradient step, its text before compilation)."""
    folder = tmp_path_factory.mktemp(request.param)
    model = write_config(folder, **(DENSE if request.param == "dense" else HYBRID))
    options = {"compute_dtype": "bfloat16", "row_tokens": TOKENS, "rows_per_microbatch": ROWS}
    learner = make_config(folder, mesh="2x4", **options).learner
    model = type(model)(**{**model.__dict__, "compute_dtype": "bfloat16"})
    shapes = param_shapes(model)
    step = Step(model, learner, make_mesh("2x4"), shapes)
    lowered = lower(step, learner, shapes)["accumulate"]
    return shapes, Program(compile_only(lowered).as_text()), lowered.as_text()


def stacked_matrices(shapes):
    for path, leaf in jax.tree_util.tree_leaves_with_path(shapes):
        if is_stacked(path) and is_matrix(path, leaf):
            yield path, leaf


def held(program):
    return {array.shape for instruction in program.instructions for array in instruction.results}


def runs(program, kind):
    """How often a collective gives a device an array of these dimensions, those of 1 left out."""
    counts = Counter()
    for collective in collectives(program):
        if collective.kind == kind:
            for array in collective.arrays:
                counts[tuple(size for size in array.shape if size > 1)] += collective.times
    return counts


def parts(shapes):
    """Shapes of every stacked matrix as one device has it."""
    mesh = make_mesh("2x4")
    for _, leaf in stacked_matrices(shapes):
        yield NamedSharding(mesh, leaf_spec(leaf.shape, mesh, stacked=True)).shard_shape(leaf.shape)


def test_no_device_ever_holds_a_whole_stack(update):
    shapes, program, _ = update
    # Where one matrix is as large as a part of another it can't be told.
    whole = {leaf.shape for _, leaf in stacked_matrices(shapes)} - set(parts(shapes))
    assert whole and not held(program) & whole


def test_no_device_ever_holds_a_whole_embedding_or_head(update):
    shapes, program, _ = update
    assert not held(program) & {shapes["embed_tokens"].shape, shapes["lm_head"].shape}


def test_each_matrix_is_gathered_once_forward_and_once_backward(update):
    shapes, program, _ = update
    wanted = Counter()
    for _, leaf in stacked_matrices(shapes):
        wanted[leaf.shape[1:]] += 2 * leaf.shape[0]
    found = runs(program, "all-gather")
    assert {shape: found[shape] for shape in wanted} == wanted


def test_each_gradient_is_summed_into_the_parts_of_its_parameter(update):
    shapes, program, _ = update
    wanted = Counter()
    for layers, *part in parts(shapes):
        wanted[tuple(size for size in part if size > 1)] += layers
    found = runs(program, "reduce-scatter")
    assert {shape: found[shape] for shape in wanted} == wanted
    matrices = {leaf.shape[1:] for _, leaf in stacked_matrices(shapes)}
    assert not matrices & runs(program, "all-reduce").keys()


def test_sequences_are_swapped_for_heads_and_never_gathered(update):
    _, program, _ = update
    assert runs(program, "all-to-all")
    for kind in ("all-gather", "all-reduce", "collective-permute"):
        assert not [shape for shape in runs(program, kind) if TOKENS in shape], kind


def test_weights_are_gathered_in_the_compute_dtype(update):
    """As asked for: XLA's CPU compiler widens what it compiles."""
    *_, text = update
    asked = re.findall(r"stablehlo\.all_gather.*-> tensor<[\dx]*x(\w+)>", text)
    assert asked and set(asked) == {"bf16"}
