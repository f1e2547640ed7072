"""An adapter's folder as PEFT has it, which vLLM reads too: ``adapter_model.safetensors`` and ``adapter_config.json``.

Invariant: it is all that there is to know of an adapter but its base. What is written are the factors as they are
merged, so equal adapters have equal bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import jax
import numpy as np

from learner.merge import adapter_tensors
from learner.models.tensor_files import TensorSpec, file_pieces
from protocol import adapter
from protocol.config import LoRA


def write_adapter(folder: Path, declared: dict, pushed: dict, lora: LoRA, base: str) -> dict[str, str]:
    """Write the files of pushed adapters durably into ``folder``, which is there; returns the sha256 of each by name.

    ``base``: what the base model is called.
    """
    leaves = jax.tree.leaves(declared)
    specs = {name: TensorSpec(leaf.file_shape, np.dtype(np.float32)) for leaf in leaves for name in leaf.names}
    tensors = file_pieces(specs, (tensor for _, tensor in adapter_tensors(declared, pushed)))
    settings = json.dumps(peft_settings(lora, base), indent=2).encode()
    return {
        name: _write(folder / name, pieces)
        for name, pieces in ((adapter.WEIGHTS, tensors), (adapter.CONFIG, [settings]))
    }


def peft_settings(lora: LoRA, base: str) -> dict:
    """The content of ``adapter_config.json``."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": int(lora.alpha) if lora.alpha == int(lora.alpha) else lora.alpha,
        "lora_dropout": 0.0,
        "target_modules": sorted(lora.modules),
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "modules_to_save": None,
        "inference_mode": True,
    }


def _write(path: Path, pieces) -> str:
    digest = hashlib.sha256()
    with path.open("wb") as stream:
        for piece in pieces:
            digest.update(piece)
            stream.write(piece)
        stream.flush()
        os.fsync(stream.fileno())
    return digest.hexdigest()
