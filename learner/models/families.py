"""The families that can be trained, by the ``model_type`` of a config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from learner.models.family import ModelConfig
from learner.models.llama import Llama
from learner.models.qwen3 import Qwen3
from learner.models.qwen3_5 import Qwen35
from protocol.config import ConfigError

FAMILIES: dict[str, type[ModelConfig]] = {
    "llama": Llama,
    "qwen3": Qwen3,
    "qwen3_5": Qwen35,
    "qwen3_5_text": Qwen35,
}


def read_config(folder: str | Path, **computation: Any) -> ModelConfig:
    """Family and sizes from ``folder/config.json``; ``computation`` sets param_dtype, compute_dtype, remat, kernels.

    Raises :class:`ConfigError` for a folder, a family or a feature that can't be trained.
    """
    path = Path(folder) / "config.json"
    try:
        tree = json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"model.folder: cannot read {path} ({error.strerror}); it names no model folder") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    family = FAMILIES.get(tree.get("model_type"))
    if family is None:
        known = ", ".join(map(repr, FAMILIES))
        raise ConfigError(f"{path}: model_type {tree.get('model_type')!r} can't be trained; known: {known}")
    try:
        return family.read(tree, **computation)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    except KeyError as error:
        raise ConfigError(f"{path}: missing {error}") from error
