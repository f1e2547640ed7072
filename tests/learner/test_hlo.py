"""Instructions and collectives of programs small enough to count by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from learner.collectives import Total, collectives, totals
from learner.hlo import Program
from learner.mesh import make_mesh


@pytest.fixture(scope="module")
def mesh():
    return make_mesh("2x4")


def compiled(mesh, function, *arguments, **options) -> Program:
    def placed(shape, spec):
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))

    with jax.set_mesh(mesh):
        return Program(jax.jit(function, **options).lower(*(placed(*a) for a in arguments)).compile().as_text())


def test_a_collective_in_a_scan_counts_as_often_as_it_runs(mesh):
    def layers(stack, x):
        def layer(x, w):
            return jnp.tanh(x @ jax.lax.with_sharding_constraint(w, PartitionSpec())), None

        return jax.lax.scan(layer, x, stack)[0]

    stack = ((5, 64, 64), PartitionSpec(None, None, ("data", "model")))
    program = compiled(mesh, layers, stack, ((16, 64), PartitionSpec("data")))
    found = totals(collectives(program))
    assert found["all-gather"] == Total(count=5, bytes=5 * 64 * 64 * 4)
    assert sum(total.count for total in found.values()) == 5
    # Each of five layers multiplies the 8 rows of a data shard with the whole matrix.
    assert program.multiply_adds == 5 * 8 * 64 * 64


def test_a_sum_over_devices_is_an_all_reduce(mesh):
    program = compiled(mesh, lambda x: x.sum(0), ((16, 32), PartitionSpec("data")), out_shardings=None)
    found = totals(collectives(program))
    assert found["all-reduce"] == Total(count=1, bytes=32 * 4)
    assert found["all-to-all"] == Total(0, 0)


def test_swapping_which_dimension_is_split_is_an_all_to_all(mesh):
    out = NamedSharding(mesh, PartitionSpec(None, "model"))
    program = compiled(mesh, lambda x: x * 2, ((16, 32), PartitionSpec("model")), out_shardings=out)
    found = totals(collectives(program))
    assert found["all-to-all"].count == 1 and found["all-to-all"].bytes == 16 * 32 * 4 // 4
    assert found["all-gather"].count == 0
