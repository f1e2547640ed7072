"""LoRA: low-rank adapters of the base's linear layers are trained, and nothing else (arXiv 2106.09685).

Invariant: an adapter is declared by its layer's own declaration, so names, shapes, the stacking of layers and the
sharding come from one place. A starts random, by the run's seed alone, and B at zero: version 0 is the base. Norms,
embeddings, head, convolutions and the delta net's decays stay as they are.
"""

from __future__ import annotations

import jax
import numpy as np

from learner.models.family import ModelConfig
from learner.models.parameters import Parameter, initialise
from protocol import adapter
from protocol.config import ConfigError, LoRA


def adapter_parameters(config: ModelConfig, lora: LoRA) -> dict:
    """The declarations of the adapters: at each target's place {"lora_a": [in, rank], "lora_b": [rank, out]}, with
    PEFT's names. Raises :class:`ConfigError` for a target that the model lacks."""
    tree, found = _adapters({"layers": config.layer_parameters()}, lora)
    if missing := [name for name in lora.modules if name not in found]:
        known = ", ".join(dict.fromkeys(_linear_layers(config.layer_parameters())))
        what = "no gated delta net, so none of " if lora.targets == "gdn_hybrid" else "no linear layer "
        raise ConfigError(
            f"learner.lora.targets ({lora.targets}): the model has {what}{', '.join(missing)}; it has {known}"
        )
    return tree


def init_adapters(declared: dict, dtype: str, seed: int, shardings) -> dict:
    """Version 0's adapters, placed by ``shardings``.

    Made whole on one device of each process, and so the same on every process and mesh.
    """
    with jax.default_device(jax.local_devices()[0]):
        start = initialise(declared, dtype, jax.random.key(seed))

    def place(x, sharding):
        host = np.asarray(x)
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    return jax.tree.map(place, start, shardings)


def scaled(adapters: dict, scale: float) -> dict:
    """Adapters whose product is the low-rank term: alpha / rank is in B."""
    return jax.tree_util.tree_map_with_path(lambda path, x: x * scale if path[-1].key == "lora_b" else x, adapters)


def _adapters(tree: dict, lora: LoRA) -> tuple[dict, set[str]]:
    """(the adapters of a tree of declarations, the names of their layers)."""
    out, found = {}, set()
    for name, branch in tree.items():
        if not isinstance(branch, dict):
            continue
        if "kernel" not in branch:
            below, names = _adapters(branch, lora)
            out |= {name: below} if below else {}
            found |= names
        elif name in lora.modules:
            out[name] = _adapter(branch["kernel"], lora.rank)
            found.add(name)
    return out, found


def _adapter(kernel: Parameter, rank: int) -> dict[str, Parameter]:
    inputs, outputs = kernel.shape
    module = adapter.PREFIX + kernel.name.removesuffix(".weight")
    # The variance of PEFT's start, which is uniform within 1 / sqrt(inputs).
    deviation = (3 * inputs) ** -0.5
    return {
        "lora_a": Parameter(module + adapter.A, (inputs, rank), deviation, transposed=True, layers=kernel.layers),
        "lora_b": Parameter(module + adapter.B, (rank, outputs), "zeros", transposed=True, layers=kernel.layers),
    }


def _linear_layers(tree: dict) -> list[str]:
    return [
        name
        for key, branch in tree.items()
        if isinstance(branch, dict)
        for name in ([key] if "kernel" in branch else _linear_layers(branch))
    ]
