"""What a run would need, as tables for people.

Invariant: a figure says what it is of (a device, a node, one run of a program), and where it is not the accelerator's
own, the note below says so.
"""

from __future__ import annotations

from rich.console import Group
from rich.table import Table

from learner.dry_run import Need
from protocol.config import Config

ROWS = {
    "parameters": "parameters",
    "optimizer": "optimizer state",
    "copy": "compute copy",
    "gradients": "gradients",
    "moved": "layers moved from and to the host",
    "temporaries": "activations and temporaries",
    "peak": "peak",
}
NOTE = """\
Parameters to gradients are by shape and sharding, temporaries the compiled program's own. It was compiled by XLA for \
CPUs, which computes bfloat16 in float32: temporaries and what collectives carry are up to twice what they are on an \
accelerator, and what the backward pass keeps (each layer's input, {kept} GB in the compute dtype) is there in both. \
Collectives are of one run of each program. Host memory is what a run keeps there, and a checkpoint that is being \
written where a node is a process; the process itself and its batches come on top."""


def tables(config: Config, need: Need) -> Group:
    learner = config.learner
    title = f"{need.total_parameters:,} parameters on mesh {learner.mesh}"
    if need.trained_parameters != need.total_parameters:
        title += f", {need.trained_parameters:,} of adapters trained"
    memory = Table("GB a device", *need.phases, title=title)
    for field, name in ROWS.items():
        if field == "peak":
            memory.add_section()
        memory.add_row(name, *(_gb(getattr(phase, field)) for phase in need.phases.values()))
    if learner.device_gb is not None:
        memory.caption = f"peak {_gb(need.peak)} of {learner.device_gb:g} GB"

    host = Table("GB of host memory", "a device", f"a node of {need.devices_a_node}")
    for name, size in need.host.items():
        host.add_row(name, _gb(size), _gb(size * need.devices_a_node))
    host.add_section()
    host.add_row("all", _gb(sum(need.host.values())), _gb(need.host_a_node))
    if learner.host_gb is not None:
        host.caption = f"{_gb(need.host_a_node)} of {learner.host_gb:g} GB a node"

    traffic = Table("collectives a device", *(f"{name}: runs, GB" for name in need.traffic))
    for kind in next(iter(need.traffic.values())):
        shown = [f"{t[kind].count:,}, {t[kind].bytes / 1e9:,.2f}" for t in need.traffic.values()]
        traffic.add_row(kind, *shown)

    rows = config.rollout.groups * config.rollout.group_size
    step = rows * learner.row_tokens / need.tokens
    work = Table(
        "floating-point operations",
        "a token",
        f"a microbatch of {need.tokens:,} tokens",
        f"a step of {rows} full rows",
    )
    for name, value in (
        ("6 (matrices + attention's causal half + head)", need.model_flops),
        ("matrix products compiled, all devices", need.computed_flops),
    ):
        work.add_row(name, f"{value / need.tokens:.3g}", f"{value:.3g}", f"{value * step:.3g}")
    source = f"Sizes are those of {need.sized}: the model's weights are not there yet. " if need.sized else ""
    note = NOTE.format(kept=_gb(need.layer_inputs))
    return Group(memory, host, traffic, work, f"{source}{note}\nCompiled in {need.seconds:,.0f} s.")


def _gb(size: float) -> str:
    return f"{size / 1e9:,.2f}"
