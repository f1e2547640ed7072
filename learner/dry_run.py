"""What a run would need, found without starting it: shapes checked against the model's files, and every program of an
update compiled ahead of time for the named mesh, on virtual CPU devices: no accelerator is taken.

Invariant: nothing is allocated but what the compiler needs. What lives between programs is counted by its shape,
sharding and memory; what a program needs beside that is the compiled program's own figure. XLA's CPU compiler knows one
memory only, and so counts as a device's what an accelerator would keep in host memory within a program: the layer
inputs of ``learner.remat: offload`` are moved over to the host here, and the layers that ``apply`` and ``copy`` fetch
from host memory are added to the device. It also computes bfloat16 in float32, so that its
temporaries are usually more than an accelerator's.
"""

from __future__ import annotations

import dataclasses
import math
import time
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import msgspec

from learner.collectives import Total, collectives, totals
from learner.grpo import TokenSums
from learner.hlo import Program
from learner.layout import Layout
from learner.mesh import MODEL, make_mesh, parse_mesh, replicated, rows_sharding
from learner.models.family import ModelConfig
from learner.models.huggingface import check_tensors, export_specs, param_shapes
from learner.optimizer import pieces
from learner.packing import Microbatch, build
from learner.step import PROBE_TOKENS, Step
from learner.train import check_rows, model_folder, read_model
from learner.trained import what_is_trained
from protocol.config import Config, ConfigError, Learner


@dataclass(frozen=True)
class Phase:
    """Bytes on one device while one of an update's programs runs."""

    parameters: int
    """And frozen ones, where adapters are trained."""
    optimizer: int
    copy: int
    gradients: int
    moved: int
    """Layers on their way from host memory and back."""
    temporaries: int
    """Activations and all else that the compiled program needs beside its arguments."""

    @property
    def peak(self) -> int:
        return sum(dataclasses.astuple(self))


@dataclass(frozen=True)
class Need:
    """What an update needs, by device. ``phases`` by name, in the order that they run."""

    total_parameters: int
    trained_parameters: int
    devices: int
    devices_a_node: int
    phases: dict[str, Phase]
    host: dict[str, int]
    """Bytes in host memory for one device, by what they hold."""
    layer_inputs: int
    """Bytes on one device of what the residual stream is before each layer."""
    traffic: dict[str, dict[str, Total]]
    """Collectives of one run of each program."""
    tokens: int
    """Of a microbatch."""
    model_flops: float
    """Of a microbatch, over all devices: :func:`model_flops`."""
    computed_flops: float
    """Of its matrix products as the compiled program has them, over all devices."""
    sized: Path | None
    """The config.json that sizes were read from, when the model's weights aren't there yet."""
    seconds: float

    @property
    def peak(self) -> int:
        return max(phase.peak for phase in self.phases.values())

    @property
    def host_a_node(self) -> int:
        return sum(self.host.values()) * self.devices_a_node


def measure(config: Config) -> Need:
    """Raises :class:`~protocol.config.ConfigError` naming what would stop the run."""
    started = time.monotonic()
    rows, columns = parse_mesh(config.learner.mesh)
    _virtual_devices(rows * columns)
    config, sized = with_sizes(config)
    learner = config.learner
    mesh = make_mesh(learner.mesh)
    check_rows(learner, mesh)
    model = read_model(config)
    if not sized:
        check_tensors(model, model_folder(config))
    trained = what_is_trained(config, model, mesh)
    shapes = trained.shapes
    step = Step(model, learner, mesh, shapes, config.rollout.sampling.temperature)
    state, copy = step.abstract_state(shapes), step.copy.shapes
    step.base = trained.base
    programs = lower(step, learner, shapes, config.rollout.sampling.support)
    compiled = {name: compile_only(program) for name, program in programs.items()}
    programs = {name: Program(program.as_text()) for name, program in compiled.items()}
    kept = _layer_inputs(model, learner.rows_per_microbatch * learner.row_tokens) // mesh.size
    host = {"parameters": _bytes(state.params, "pinned_host"), "optimizer": _bytes(state.optimizer, "pinned_host")}
    host["layer inputs"] = kept if learner.remat == "offload" else 0
    host["a checkpoint on its way"] = checkpoint_share(state, learner.checkpoint_gb, mesh.shape[MODEL])
    host["the last version pushed"] = _pushed(model, learner) // mesh.size
    resident = {"parameters": _bytes(state.params) - host["parameters"] + _bytes(trained.base)}
    resident["optimizer"] = _bytes(state.optimizer) - host["optimizer"]
    moved = {"copy": _moved(state.params), "apply": _moved(state)}
    separate = 0 if step.copy.same else _bytes(copy)
    # Adapters are probed merged, beside the base.
    copies = {"apply": 0, "probe": separate if trained.base is None else _bytes(trained.base)}
    phases = {}
    for name, program in compiled.items():
        memory = program.memory_analysis()
        # The copy's own result is counted as the copy.
        results = 0 if name == "copy" else memory.output_size_in_bytes - memory.alias_size_in_bytes
        phases[name] = Phase(
            **resident,
            copy=copies.get(name, separate),
            gradients=_bytes(_float32(copy)) if name in ("accumulate", "apply") else 0,
            moved=moved.get(name, 0),
            temporaries=memory.temp_size_in_bytes + results - (host["layer inputs"] if name == "accumulate" else 0),
        )
    return Need(
        total_parameters=sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(param_shapes(model))),
        trained_parameters=sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state.params)),
        devices=mesh.size,
        devices_a_node=columns,
        phases=phases,
        host=host,
        layer_inputs=kept,
        traffic={name: totals(collectives(program)) for name, program in programs.items()},
        tokens=learner.rows_per_microbatch * learner.row_tokens,
        model_flops=model_flops(model, learner.rows_per_microbatch, learner.row_tokens),
        computed_flops=2.0 * programs["accumulate"].multiply_adds * mesh.size,
        sized=sized,
        seconds=time.monotonic() - started,
    )


def lower(step: Step, learner: Learner, shapes, support: int = 0) -> dict[str, jax.stages.Lowered]:
    """The programs of an update, in the order that they run, for rows with a loss at every place. ``shapes``: of what
    is trained; ``support``: how many ids a token was sampled from at most, 0 for the vocabulary."""
    state, copy = step.abstract_state(shapes), step.copy.shapes
    scalar = jax.ShapeDtypeStruct((), jnp.float32, sharding=replicated(step.mesh))
    sums = TokenSums(*[scalar] * len(TokenSums._fields))
    batch = _batch(learner.rows_per_microbatch, learner.row_tokens, rows_sharding(step.mesh), support)
    probe = _batch(1, PROBE_TOKENS, replicated(step.mesh))
    with jax.set_mesh(step.mesh):
        return {
            "copy": step.copy.make.lower(state.params, rounded=None),
            "accumulate": step.accumulate.lower(copy, _float32(copy), sums, batch, scalar, step.base),
            "apply": step.apply.lower(state, _float32(copy)),
            "probe": step._probe.lower(step.base or copy, probe),
        }


def compile_only(program: jax.stages.Lowered) -> jax.stages.Compiled:
    """For its analysis: machine code that never runs needn't be good, and good code takes the most time to make."""
    return program.compile({"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True})


def model_flops(model: ModelConfig, rows: int, tokens: int) -> float:
    """Floating-point operations that learning from ``rows`` rows takes by the formulas, each of one segment with a
    loss at every place: 2 a multiply-add, and backward twice what forward takes. What is computed again isn't counted,
    nor is what attention's causal mask throws away. Forward, a token meets every matrix of the layers (and the state of
    a recurrence), a pair of tokens the heads of each attention layer, a place of loss the head."""
    work = model.work()
    return 3 * 2.0 * rows * (work.token * tokens + work.pair * tokens**2 + work.place * tokens)


def check_fits(config: Config, need: Need) -> None:
    """Raises :class:`~protocol.config.ConfigError` naming what doesn't fit, and the ways out."""
    learner, problems = config.learner, []
    if learner.device_gb is not None and need.peak > learner.device_gb * 1e9:
        name = max(need.phases, key=lambda name: need.phases[name].peak)
        ways = ["a larger mesh", "a smaller learner.row_tokens, as far as episodes allow"]
        ways += (
            []
            if learner.remat == "offload"
            else ["learner.remat: offload" + (" or layer" if learner.remat == "none" else "")]
        )
        ways += [] if learner.optimizer.memory == "pinned_host" else ["learner.optimizer.memory: pinned_host"]
        ways += [] if learner.param_memory == "pinned_host" else ["learner.param_memory: pinned_host"]
        ways += [] if learner.compute_dtype == "bfloat16" else ["learner.compute_dtype: bfloat16"]
        ways += [] if learner.lora else ["learner.lora"]
        problems.append(
            f"{name} needs {need.peak / 1e9:,.1f} GB on a device and learner.device_gb is {learner.device_gb:g}: take "
            + ", ".join(ways)
        )
    if learner.host_gb is not None and need.host_a_node > learner.host_gb * 1e9:
        ways = ["a larger mesh"]
        ways += [] if learner.checkpoint_gb else ["learner.checkpoint_gb, which writes checkpoints a part at a time"]
        ways += [] if learner.full_push_every == 1 else ["learner.full_push_every: 1"]
        problems.append(
            f"a node's devices need {need.host_a_node / 1e9:,.1f} GB of host memory and learner.host_gb is "
            f"{learner.host_gb:g}: take "
            + ", ".join([*ways, "learner.param_memory: device", "learner.param_dtype: bfloat16"])
        )
    if problems:
        raise ConfigError("the run doesn't fit: " + "; ".join(problems))


def with_sizes(config: Config) -> tuple[Config, Path | None]:
    """``config`` with a model folder to read sizes from, and that folder where it isn't the model's own."""
    sizes = Path(config.model.sizes)
    if not config.model.sizes or (model_folder(config) / "config.json").exists():
        return config, None
    model = msgspec.structs.replace(config.model, folder=str(sizes.resolve()))
    return msgspec.structs.replace(config, model=model), sizes


def _virtual_devices(count: int) -> None:
    # Possible only before the first device is looked at; afterwards make_mesh says what is missing.
    try:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        pass


def _batch(rows: int, tokens: int, sharding, support: int = 0) -> Microbatch:
    """Shapes of rows with a loss at every place."""
    batch = build(Layout(tokens, tokens, ((),) * rows), [], support=support)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), batch)


def _float32(tree):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32, sharding=x.sharding), tree)


def _layer_inputs(model: ModelConfig, tokens: int) -> int:
    """Bytes of the residual stream before every layer."""
    return model.num_hidden_layers * tokens * model.hidden_size * jnp.dtype(model.compute_dtype).itemsize


def _bytes(tree, memory: str | None = None) -> int:
    """A device's share of ``tree``; of what lives in ``memory`` alone, where that is given."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
        for x in jax.tree.leaves(tree)
        if memory is None or x.sharding.memory_kind == memory
    )


def checkpoint_share(state, memory_gb: float | None, devices: int) -> int:
    """A device's share of what a node's process holds of a checkpoint that is being written: at most all that its
    ``devices`` have of the state (where nodes have the same, the first one writes it)."""
    if memory_gb is None:
        return _bytes(state)
    largest = max(_bytes(leaf) for leaf in jax.tree.leaves(state))
    return min(_bytes(state), max(largest, round(memory_gb * 1e9 / devices)))


def _pushed(model: ModelConfig, learner: Learner) -> int:
    """What all processes keep of the pushed weights, to tell the next version's changes from."""
    if learner.full_push_every == 1:
        return 0
    return sum(spec.nbytes for spec in export_specs(model, learner.weights_dtype).values())


def _moved(tree) -> int:
    """The most of ``tree`` that is on its way between host memory and a device at a time: a layer or a parameter, the
    old values and the new."""
    sizes = [
        _bytes([x for x in jax.tree.leaves(piece) if x.sharding.memory_kind == "pinned_host"]) // (piece_layers or 1)
        for piece, piece_layers in _pieces(tree)
    ]
    return 2 * max(sizes, default=0)


def _pieces(tree):
    """The pieces of a tree of parameters, or of a state with moments like them, each with its number of layers."""
    params = tree.params if hasattr(tree, "params") else tree
    like = jax.tree.structure(params)
    trees = [
        node
        for node in jax.tree.leaves(tree, is_leaf=lambda node: jax.tree.structure(node) == like)
        if jax.tree.structure(node) == like
    ]
    for piece in pieces(params):
        yield [piece.of(tree) for tree in trees], piece.layers
