"""Rotary positions: plain, over a part of each head, and stretched as Llama 3's.

Invariant: angles depend on the position within a segment and on the configuration alone, and are float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from protocol.config import ConfigError


@dataclass(frozen=True)
class Llama3Scaling:
    """Long wavelengths are slowed by ``factor``, short ones kept, those between blended."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def apply(self, frequencies: np.ndarray) -> np.ndarray:
        wavelengths = 2 * math.pi / frequencies
        turns = self.original_max_position_embeddings / wavelengths
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = np.clip(kept, 0.0, 1.0)
        return frequencies * (kept + (1 - kept) / self.factor)


@dataclass(frozen=True)
class Rotary:
    """``width``: how many of a head's leading dimensions turn."""

    theta: float
    width: int
    scaling: Llama3Scaling | None = None

    def angles(self, positions: jax.Array) -> jax.Array:
        """``positions`` int [R, T] -> float32 [R, T, width / 2]."""
        # In float32 like the actors' engines: at position 100,000 a better rounding would be another angle.
        exponents = np.arange(0, self.width, 2, dtype=np.float32) / np.float32(self.width)
        frequencies = np.float32(1.0) / np.float32(self.theta) ** exponents
        if self.scaling:
            frequencies = self.scaling.apply(frequencies)
        return positions[..., None].astype(jnp.float32) * jnp.asarray(frequencies, jnp.float32)


def read_rotary(tree: Mapping[str, Any], head_dim: int) -> Rotary:
    """From a config.json, old style (``rope_theta``, ``rope_scaling``) or new (``rope_parameters``).

    Raises :class:`ConfigError` for a scaling that isn't known, and KeyError for what is missing.
    """
    rope = {**(tree.get("rope_scaling") or {}), **(tree.get("rope_parameters") or {})}
    kind = rope.get("rope_type", rope.get("type", "default"))
    scaling = None
    if kind == "llama3":
        fields = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        scaling = Llama3Scaling(*(rope[field] for field in fields))
    elif kind != "default":
        raise ConfigError(f"rotary scaling {rope} is not supported; known: default, llama3")
    theta = float(rope["rope_theta"] if "rope_theta" in rope else tree["rope_theta"])
    share = rope.get("partial_rotary_factor", tree.get("partial_rotary_factor", 1.0))
    return Rotary(theta, int(head_dim * share), scaling)


def rotate(x: jax.Array, angles: jax.Array) -> jax.Array:
    """Turn pairs (i, i + W/2) of the first W dimensions of ``x`` [R, T, H, D] by ``angles`` float32 [R, T, W/2]."""
    half = angles.shape[-1]
    first, second, rest = (part.astype(jnp.float32) for part in jnp.split(x, (half, 2 * half), axis=-1))
    cos, sin = jnp.cos(angles)[:, :, None], jnp.sin(angles)[:, :, None]
    turned = (first * cos - second * sin, second * cos + first * sin, rest)
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)
