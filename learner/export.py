"""A checkpoint as a Hugging Face folder that vLLM serves: ``bin/learner export``.

Invariant: the folder appears only when it has been read back and found to be the checkpoint's policy: its files by
their digests, its tensors one by one against the checkpoint's as rounded to the exported dtype, and the
log-probabilities that a model loaded from it gives on the probe against the checkpoint's own. The run's folder is only
read, so a run may be going on meanwhile.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from rich.console import Console

from learner.errors import ExportFailed
from learner.mesh import make_mesh
from learner.models.family import ModelConfig
from learner.models.huggingface import export_tensors, load_params, open_tensors
from learner.step import Step
from learner.train import model_folder, read_model
from learner.trained import Policy, base_facts, require_same_base, what_is_trained
from learner.weights import WeightStore, file_digest
from protocol.config import Config, ConfigError
from protocol.records import PolicyVersion, Probe


class Exported(NamedTuple):
    folder: Path
    step: int
    difference: float
    """Mean absolute difference of the log-probabilities on the probe: what rounding to the exported dtype did."""


def export(config: Config, step: int | None, out: Path, dtype: str | None, console: Console) -> Exported:
    """Write the policy of checkpoint ``step`` (None: the last) to ``out`` in ``dtype`` (None: that of the weights that
    the run pushes), on the mesh of ``config``, and verify it.

    Raises :class:`ConfigError` for a checkpoint that isn't there or can't be read and for an ``out`` that is there, and
    :class:`ExportFailed` naming what differs.
    """
    step, compiled, model, pushed, ids = _restored(config, step, out)
    learner, policy = config.learner, pushed.params
    dtype = dtype or learner.weights_dtype
    console.print(f"checkpoint {step} restored on mesh {learner.mesh}; writing {out}", highlight=False)
    beside = out.with_name(f".{out.name}.part")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        logprobs = compiled.probe(policy, ids, dtype).astype("<f4")
        probe = Probe(ids.astype("<i4").tobytes(), logprobs.tobytes(), learner.proof_tolerance)
        record = WeightStore(beside, model_folder(config), dtype, keep=1).write(config.run, step, policy, probe)
        place = Path(record.folder)
        problems = [*_damaged(record), *_differing(model, policy, dtype, place)]
        if problems:
            raise ExportFailed(_said(place, problems))
        again = load_params(model, place, jax.tree.map(lambda x: x.sharding, policy))
        own, theirs = (compiled.probe(tree, ids, learner.param_dtype) for tree in (policy, again))
        difference = float(np.abs(own.astype(np.float64) - theirs).mean())
        if not difference <= learner.proof_tolerance:
            raise ExportFailed(
                f"the exported model's log-probabilities differ from the checkpoint's by {difference:.3g} on average, "
                f"tolerance {learner.proof_tolerance:g} (learner.proof_tolerance)"
            )
        place.rename(out)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return Exported(out, step, difference)


def export_adapter(config: Config, step: int | None, out: Path) -> tuple[Path, int]:
    """Write the adapter of checkpoint ``step`` (None: the last) to ``out`` as PEFT has it; returns folder and step.

    It is of factors as they are pushed, and goes onto the base in ``learner.weights_dtype``. Raises
    :class:`ConfigError` as :func:`export`, and for a run that trains all parameters.
    """
    if config.learner.lora is None:
        raise ConfigError("learner.lora is not set: the run trains all parameters, and has no adapter to export")
    step, *_, pushed, _ = _restored(config, step, out)
    beside = out.with_name(f".{out.name}.part")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        pushed.adapter.write(beside)
        beside.rename(out)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return out, step


class _Restored(NamedTuple):
    step: int
    compiled: Step
    model: ModelConfig
    pushed: Policy
    probe_ids: np.ndarray


def _restored(config: Config, step: int | None, out: Path) -> _Restored:
    """The policy of a checkpoint, for an ``out`` that isn't there."""
    if out.exists():
        raise ConfigError(f"{out} is there already: name another folder, or remove it")
    folder, step = _checkpoint(config, step)
    mesh, model = make_mesh(config.learner.mesh), read_model(config)
    trained = what_is_trained(config, model, mesh)
    compiled = Step(model, config.learner, mesh, trained.shapes)
    params, facts = _restore(folder, trained.shapes, compiled.params)
    compiled.base = trained.load_base(model_folder(config))
    require_same_base(step, facts, base_facts(compiled.base))
    ids = np.asarray(facts["probe"], np.int32)
    return _Restored(step, compiled, model, trained.policy(params, compiled.base), ids)


def _checkpoint(config: Config, step: int | None) -> tuple[Path, int]:
    folder = config.path / "checkpoints"
    steps = sorted(int(path.name) for path in folder.glob("*") if path.name.isdecimal())
    if not steps:
        raise ConfigError(f"{folder} holds no checkpoint: nothing to export")
    if step is not None and step not in steps:
        raise ConfigError(f"{folder} holds no checkpoint of step {step}; it has those of {', '.join(map(str, steps))}")
    step = steps[-1] if step is None else step
    return (folder / str(step)).resolve(), step


def _restore(folder: Path, shapes: dict, shardings: dict) -> tuple[dict, dict]:
    """(what is trained, the facts) of a checkpoint; the optimizer's state is left where it is."""
    like = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings)
    wanted = {"params": like}
    places = ocp.checkpoint_utils.construct_restore_args(wanted)
    items = ocp.args.Composite(
        state=ocp.args.PyTreeRestore(item=wanted, restore_args=places, partial_restore=True),
        facts=ocp.args.JsonRestore(),
    )
    handler = ocp.CompositeCheckpointHandler(state=ocp.PyTreeCheckpointHandler(), facts=ocp.JsonCheckpointHandler())
    try:
        with ocp.Checkpointer(handler) as reader:
            found = reader.restore(folder, args=items)
        return jax.block_until_ready(found.state["params"]), found.facts
    except Exception as error:  # Orbax and TensorStore raise many kinds, as for a file that is cut or gone
        said = str(error).strip().splitlines()
        raise ConfigError(f"{folder} can't be read: {said[0][:300] if said else repr(error)}") from error


def _damaged(record: PolicyVersion) -> Iterator[str]:
    """Files that aren't on the disk as they were written."""
    for name, digest in record.sha256.items():
        if (actual := file_digest(Path(record.folder) / name)) != digest:
            yield f"{name} has sha256 {actual or 'none, for it is not there'}, written was {digest}"


def _differing(model, policy: dict, dtype: str, folder: Path) -> Iterator[str]:
    """Tensors that aren't the checkpoint's, rounded."""
    found = open_tensors(folder)
    for name, expected in export_tensors(model, policy, dtype):
        actual = found.get(name)
        if actual is None:
            yield f"tensor {name} is missing"
        elif (actual.shape, actual.dtype) != (expected.shape, expected.dtype):
            yield f"tensor {name} is {actual.dtype} {actual.shape}, not {expected.dtype} {expected.shape}"
        elif actual.tobytes() != expected.tobytes():
            wide = (x.astype(np.float64) for x in (actual, expected))
            yield f"tensor {name} differs by {np.abs(np.subtract(*wide)).max():.3g} at most"


def _said(folder: Path, problems: list[str]) -> str:
    more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
    return f"{folder} is not what the checkpoint holds: {'; '.join(problems[:3])}{more}"
