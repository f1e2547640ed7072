"""A low-rank adapter, and the weights that it makes of its base's: W + (alpha / rank) B A (LoRA, arXiv 2106.09685).

Invariant: the same factors make the same weights, bit for bit, wherever they are merged: in an actor from files, in the
learner from a device's shard. A matrix product in floating point depends on the order of its sums, which every library
chooses for itself. So the factors are pushed on a grid: whole multiples of a power of two, so coarse that every sum of
their products is exact in float64, and so has no order. The grid is as fine as float32 is at the factor's largest
value.

numpy alone, for an actor's environment has little else.
"""

from __future__ import annotations

import numpy as np

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
PREFIX = "base_model.model."
"""What PEFT puts before a module's name."""
A, B = ".lora_A.weight", ".lora_B.weight"
"""What it puts after it. A is [rank, in], B is [out, rank]."""

_SIGNIFICAND, _NARROW = 53, 24
"""Bits of a float64's significand, and of a float32's."""
_SMALLEST = -149
"""float32's smallest step is two to this."""


def on_grid(factor: np.ndarray, rank: int) -> np.ndarray:
    """``factor`` (float32, one of a pair of ``rank``) rounded to its grid, float32.

    Each value is n * 2^e with |n| <= 2^p and rank * 2^(2p) <= 2^53. Raises ValueError for one that isn't finite.
    """
    wide = factor.astype(np.float64)
    largest = np.abs(wide).max(initial=0.0)
    if not np.isfinite(largest):
        raise ValueError("an adapter's factor holds a value that isn't finite")
    if largest == 0.0:
        return np.zeros(factor.shape, np.float32)
    bits = min((_SIGNIFICAND - (rank - 1).bit_length()) // 2, _NARROW)
    step = np.ldexp(1.0, max(int(np.frexp(largest)[1]) - bits, _SMALLEST))
    return (np.rint(wide / step) * step).astype(np.float32)


def merged(base: np.ndarray, a: np.ndarray, b: np.ndarray, scale: float) -> np.ndarray:
    """float32 [out, in]: ``base`` [out, in] + ``scale`` * ``b`` [out, rank] @ ``a`` [rank, in].

    The product is exact where both factors are :func:`on_grid`; so any rows and columns come out as they would in the
    whole. Scaling and sum are rounded in float64, the result to float32.
    """
    product = b.astype(np.float64) @ a.astype(np.float64)
    product *= scale
    product += base
    return product.astype(np.float32)


def bfloat16_bits(x: np.ndarray) -> np.ndarray:
    """float32 as the bits of bfloat16, uint16, rounded to nearest, ties to even; finite values only."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bfloat16_bits(bits: np.ndarray) -> np.ndarray:
    """The bits of bfloat16, uint16, as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
