"""What a run would need, found without starting it: shapes checked against the model's files, and the update
compiled ahead of time for the named mesh, on virtual CPU devices: no accelerator is taken.

Invariant: nothing is allocated but what the compiler needs; the figures are the compiled program's own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Table

from learner.grpo import TokenSums
from learner.mesh import make_mesh, parse_mesh, replicated, rows_sharding
from learner.models.huggingface import check_tensors, param_shapes
from learner.packing import Microbatch
from learner.step import Step
from learner.train import check_rows, model_folder, read_model
from protocol.config import Config


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes on one device, but for ``total_parameters`` (a count over the whole model)."""

    total_parameters: int
    parameters: int
    optimizer: int
    gradients: int
    temporaries: int
    """The compiled gradient step's own peak beyond its arguments and results."""


def device_memory(config: Config) -> DeviceMemory:
    """Raises :class:`~protocol.config.ConfigError` naming what would stop the run."""
    rows, columns = parse_mesh(config.learner.mesh)
    _virtual_devices(rows * columns)
    mesh = make_mesh(config.learner.mesh)
    check_rows(config.learner, mesh)
    model = read_model(config)
    check_tensors(model, model_folder(config))
    shapes = param_shapes(model)
    step = Step(model, config.learner, mesh, shapes, config.rollout.sampling.temperature)
    state = step.abstract_state(shapes)
    grads = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32, sharding=x.sharding), state.params)
    scalar = jax.ShapeDtypeStruct((), jnp.float32, sharding=replicated(mesh))
    shape = (config.learner.rows_per_microbatch, config.learner.row_tokens)
    kinds = {"valid": np.bool_, "weights": np.float32, "behaviour": np.float32}
    batch = Microbatch(
        *(
            jax.ShapeDtypeStruct(shape, kinds.get(name, np.int32), sharding=rows_sharding(mesh))
            for name in Microbatch._fields
        )
    )
    sums = TokenSums(*[scalar] * len(TokenSums._fields))
    with jax.set_mesh(mesh):
        compiled = step.accumulate.lower(state.params, grads, sums, batch, scalar).compile()
    return DeviceMemory(
        total_parameters=sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)),
        parameters=_bytes(state.params),
        optimizer=_bytes(state.optimizer),
        gradients=_bytes(grads),
        temporaries=compiled.memory_analysis().temp_size_in_bytes,
    )


def table(config: Config, memory: DeviceMemory) -> Table:
    """The figures for people."""
    out = Table("per device", "MiB", title=f"{memory.total_parameters:,} parameters on mesh {config.learner.mesh}")
    for name in ("parameters", "optimizer", "gradients", "temporaries"):
        out.add_row(name, f"{getattr(memory, name) / 2**20:,.1f}")
    return out


def _virtual_devices(count: int) -> None:
    # Possible only before the first device is looked at; afterwards make_mesh says what is missing.
    try:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        pass


def _bytes(tree) -> int:
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))
