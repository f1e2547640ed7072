"""What a run trains: all parameters of its model, or adapters of a frozen base.

Invariant: the loop is the same for both. What it updates and saves is one tree, what it pushes and proves is the whole
model's, and a state goes on only from the base that it was learnt on.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
from jax.sharding import Mesh

from learner.adapter_files import write_adapter
from learner.lora import adapter_parameters, init_adapters
from learner.merge import merged_params, pushed_adapters
from learner.mesh import param_shardings
from learner.models.family import ModelConfig
from learner.models.huggingface import load_params, param_shapes, params_digest
from learner.models.parameters import shapes
from learner.weights import AdapterPush
from protocol.config import Config, ConfigError


class Policy(NamedTuple):
    """A version of the policy, to be pushed."""

    params: dict
    """The whole model's parameters as an actor will hold them, but for rounding to what is pushed."""
    adapter: AdapterPush | None
    """What is pushed instead of them; None: they are."""


class Trained(Protocol):
    shapes: dict
    """Of the tree that is trained."""
    base: dict | None
    """Shapes and shardings of the frozen parameters; None: there are none."""

    def load_base(self, folder: Path) -> dict | None:
        """The frozen parameters of the model in ``folder``. Raises :class:`ConfigError`."""
        ...

    def start(self, folder: Path, shardings) -> dict:
        """What is trained, before the first update, placed by ``shardings``. Raises :class:`ConfigError`."""
        ...

    def policy(self, params: dict, base: dict | None) -> Policy:
        """What is pushed of trained ``params``."""
        ...


class Parameters:
    """All parameters are trained."""

    def __init__(self, model: ModelConfig):
        self.model, self.shapes, self.base = model, param_shapes(model), None

    def load_base(self, folder: Path) -> None:
        return None

    def start(self, folder: Path, shardings) -> dict:
        return load_params(self.model, folder, shardings)

    def policy(self, params: dict, base: None) -> Policy:
        return Policy(params, None)


class Adapters:
    """Adapters are trained. The base is held in the dtype that is pushed, so that they go onto what is served."""

    def __init__(self, config: Config, model: ModelConfig, mesh: Mesh):
        """Raises :class:`ConfigError` for a target that the model lacks."""
        self.lora, self.seed, self.dtype = config.learner.lora, config.seed, model.param_dtype
        self.called = config.model.folder
        self.declared = adapter_parameters(model, self.lora)
        self.shapes = shapes(self.declared, self.dtype)
        self.frozen = dataclasses.replace(model, param_dtype=config.learner.weights_dtype)
        tree = param_shapes(self.frozen)
        place = param_shardings(tree, mesh)
        self.base = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), tree, place)

    def load_base(self, folder: Path) -> dict:
        return load_params(self.frozen, folder, jax.tree.map(lambda x: x.sharding, self.base))

    def start(self, folder: Path, shardings) -> dict:
        return init_adapters(self.declared, self.dtype, self.seed, shardings)

    def policy(self, params: dict, base: dict) -> Policy:
        pushed = pushed_adapters(params, self.lora.rank)

        def write(folder: Path) -> dict[str, str]:
            return write_adapter(folder, self.declared, pushed, self.lora, self.called)

        return Policy(merged_params(base, pushed, self.lora.scale), AdapterPush(base, write))


def what_is_trained(config: Config, model: ModelConfig, mesh: Mesh) -> Trained:
    """By ``learner.lora``. Raises :class:`ConfigError`."""
    return Parameters(model) if config.learner.lora is None else Adapters(config, model, mesh)


def base_facts(base: dict | None) -> dict[str, Any]:
    """What a checkpoint says of a base that it doesn't hold."""
    return {} if base is None else {"base": params_digest(base)}


def require_same_base(step: int, then: dict[str, Any], now: dict[str, Any]) -> None:
    """Raises :class:`ConfigError` when the facts of a checkpoint are of another base than ``now``."""
    if then.get("base") != now.get("base"):
        raise ConfigError(
            f"checkpoint {step} holds adapters of another base ({then.get('base')}, model.folder has "
            f"{now.get('base')}): put back the model files that the run began with, or begin another run"
        )
